"""Tokenizes the 217 golden texts, in both modes, over HTTP."""

from flotilla_server import MODEL, json_lines


def test_all_texts_in_both_modes(server):
    cases = json_lines("tokenize.jsonl")
    assert len(cases) == 217
    for case in cases:
        for parse_special, golden in ((False, "ids"), (True, "ids_parse_special")):
            answer = server.post("/tokenize", model=MODEL, prompt=case["text"],
                                 add_special_tokens=False, parse_special=parse_special)
            assert answer["tokens"] == case[golden], (case["text"], parse_special)
            assert answer["count"] == len(case[golden])
