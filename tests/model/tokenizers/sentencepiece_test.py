"""tokenizer.model of SentencePiece, trained here and compared with its own library: texts encode, decode and
decode as a stream to the same.
"""

import io
import json
import random
import subprocess

import pytest
import sentencepiece

from comparison import MARK, TOOL, TRAINED_ON, ask, texts_of

# Model type, normalization, and settings of the trainer.
MODELS = {
    "llama": ("bpe", "identity", {"byte_fallback": True, "remove_extra_whitespaces": False}),
    "gemma": ("bpe", "identity", {"byte_fallback": True, "remove_extra_whitespaces": False,
                                  "add_dummy_prefix": False}),
    "bpe, nfkc": ("bpe", "nfkc", {"byte_fallback": True}),
    "bpe, nmt": ("bpe", "nmt_nfkc", {"byte_fallback": True, "add_dummy_prefix": False}),
    "bpe, unknown": ("bpe", "nmt_nfkc", {}),
    "t5": ("unigram", "nmt_nfkc", {}),
    "unigram, bytes": ("unigram", "nmt_nfkc", {"byte_fallback": True}),
    "unigram, folded": ("unigram", "nmt_nfkc_cf", {"byte_fallback": True}),
    "unigram, spaces": ("unigram", "identity", {"byte_fallback": True,
                                                "remove_extra_whitespaces": False}),
    "unigram, no prefix": ("unigram", "nfkc", {"byte_fallback": True, "add_dummy_prefix": False}),
    "suffix": ("unigram", "nmt_nfkc", {"byte_fallback": True, "treat_whitespace_as_suffix": True}),
}


def train(name):
    kind, normalization, settings = MODELS[name]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=TRAINED_ON, model_writer=model, model_type=kind, vocab_size=1400, minloglevel=2,
        normalization_rule_name=normalization, num_threads=1, **settings)
    return model.getvalue()


@pytest.mark.parametrize("name", MODELS)
def test_tokenizer_model(name, tmp_path):
    model = train(name)
    (tmp_path / "tokenizer.model").write_bytes(model)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    # U+2581 is a space that nothing removes when a text is encoded, but when it is decoded.
    texts = [text.replace(MARK, "") for text in texts_of(random.Random(name))]
    expected = reference.encode(texts)
    encoded = ask(tmp_path, [{"text": text} for text in texts])
    for text, ids, wanted in zip(texts, encoded, expected):
        assert ids == wanted, repr(text)
    # The unknown token gives no text here, as in `transformers`, and U+2047 in the reference.
    unknown = reference.unk_id()
    assert any(unknown in ids for ids in expected) or MODELS[name][2].get("byte_fallback")
    for ids, got in zip(expected, ask(tmp_path, [{"ids": ids} for ids in expected])):
        wanted = reference.decode([id for id in ids if id != unknown])
        if unknown in ids:  # the reference drops all spaces in front of a text
            got = {name: text.lstrip(" ") for name, text in got.items()}
        assert got == {"text": wanted, "streamed": wanted}, ids


@pytest.mark.parametrize("name", ["bpe, unknown", "t5"])
def test_the_unknown_token_has_a_name_and_no_text(name, tmp_path):
    """As in `transformers`, which shows `<unk>` with skip_special_tokens=False only."""
    model = train(name)
    (tmp_path / "tokenizer.model").write_bytes(model)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    unknown, words, more = reference.unk_id(), reference.encode("the licence"), reference.encode("and")
    assert reference.decode([*words, unknown, *more]) == "the licence \u2047  and"
    cases = {  # ids -> their text, and the text with names of control tokens
        (unknown,): ("", "<unk>"),
        (unknown, *words): ("the licence", "<unk> the licence"),
        (unknown, unknown, *words): ("the licence", "<unk><unk> the licence"),
        (*words, unknown, *more): ("the licence and", "the licence<unk> and"),
    }
    for special in False, True:
        got = ask(tmp_path, [{"ids": ids, "special": special} for ids in cases])
        assert got == [{"text": texts[special], "streamed": texts[special]} for texts in cases.values()]


def test_added_tokens_and_special_text(tmp_path):
    """tokenizer_config.json adds tokens; control tokens in a text of a user stay text."""
    model = train("llama")
    (tmp_path / "tokenizer.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
        "added_tokens_decoder": {
            "1": {"content": "<s>", "special": True},
            "1400": {"content": "<|turn|>", "special": True, "rstrip": True},
            "1402": {"content": "<tool>", "special": False}}}))
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = ["a<|turn|>  b", "a<tool>b", "a<s>b"]
    assert ask(tmp_path, [{"text": text, "special": True} for text in texts]) == [
        reference.encode("a") + [1400] + reference.encode("b"),
        reference.encode("a") + [1402] + reference.encode("b"),
        reference.encode("a") + [1] + reference.encode("b")]
    assert ask(tmp_path, [{"text": text} for text in texts]) == [
        reference.encode(texts[0]), reference.encode("a") + [1402] + reference.encode("b"),
        reference.encode(texts[2])]


@pytest.mark.parametrize("change, message", [
    (lambda model: model[:-1], "is no message of SentencePiece"),
    (lambda model: b"", "is no message of SentencePiece"),
    (lambda model: b"\x0a\x04\x0a\x02\xff\xfe" + model, "piece 0 is not UTF-8"),
    (lambda model: b"\x0a\x05\x0a\x01a\x18\x07" + model, "piece 0 has type 7"),
    (lambda model: model + b"\x12\x02\x18\x03", "model_type 3"),
    (lambda model: model + b"\x1a\x05\x12\x03abc", "precompiled_charsmap has 3 bytes"),
    (lambda model: model + b"\x1a\x02\x28\x00", "escape_whitespaces"),
])
def test_what_is_wrong_is_refused_by_name(change, message, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(change(train("llama")))
    run = subprocess.run([TOOL, tmp_path], input="", capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert message in run.stderr


def test_classes_that_number_pieces_otherwise_are_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train("t5"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    run = subprocess.run([TOOL, tmp_path], input="", capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "'XLMRobertaTokenizer' is not supported without tokenizer.json" in run.stderr
