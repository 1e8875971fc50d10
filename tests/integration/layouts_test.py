"""A model over several rank processes: every layout gives the bits of one rank, and in
fp32 the answers of the reference."""

import concurrent.futures

import pytest

from flotilla_server import MODEL, Fleet, SANITIZED, json_lines

LAYOUTS = [(1, 1), (3, 1), (2, 1), (1, 2), (2, 2)]
RECIPES = {"fp32": ["--compute", "fp32", "--kv-type", "fp32"], "accurate": []}
CHATS = json_lines("greedy.jsonl")[:2 if SANITIZED else 16]


def serve(directory, tp, pp, recipe):
    """Tokens and log-probabilities of all chats, greedy, and of some sampled ones."""
    flags = ["--tp", str(tp), "--pp", str(pp), "--kv-blocks", "1024", *RECIPES[recipe]]
    with Fleet(directory, extra={"worker": flags}) as fleet:
        assert len(fleet.worker.members()[0]) == tp * pp

        def ask(chat, **more):
            answer = fleet.http.post("/v1/chat/completions", json=dict(
                model=MODEL, messages=chat["messages"], logprobs=True, top_logprobs=5,
                return_token_ids=True, **more))
            assert answer.status_code == 200, answer.text
            return [(choice["token_ids"], choice["logprobs"]) for choice in answer.json()["choices"]]

        with concurrent.futures.ThreadPoolExecutor(len(CHATS) + 3) as pool:
            greedy = [pool.submit(ask, chat, temperature=0, max_tokens=len(chat["greedy_ids"]))
                      for chat in CHATS]
            sampled = [pool.submit(ask, chat, temperature=0.9, top_p=0.95, seed=i, n=2, max_tokens=24)
                       for i, chat in enumerate(CHATS[:3])]
            return [one.result() for one in greedy], [one.result() for one in sampled]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_layout_gives_the_bits_of_one_rank(tmp_path, recipe):
    answers = {}
    for tp, pp in LAYOUTS:
        directory = tmp_path / f"tp{tp}pp{pp}"
        directory.mkdir()
        answers[tp, pp] = serve(directory, tp, pp, recipe)
    for layout, answer in answers.items():
        assert answer == answers[1, 1], f"tp, pp = {layout}"
    if recipe == "fp32":
        for chat, [(tokens, _)] in zip(CHATS, answers[1, 1][0]):
            assert tokens == chat["greedy_ids"], chat["messages"]
