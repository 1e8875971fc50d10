"""Tokenizers of GGUF files, as llama.cpp's converter writes them: the ids are those of the libraries
that trained the vocabularies.
"""

import json
import random
import re
import struct
import subprocess
import unicodedata

import pytest
import sentencepiece
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from comparison import MARK, TOOL, ask, texts_of
from parts_test import word_piece
from sentencepiece_test import train
from tokenizers_test import BLOOM, CASED, CONTRACTION, DEEPSEEK, LLAMA3, bytes_of_pieces, gpt2, sequence
from tokenizers_test import characters, split
from unicode_test import byte_level_model
from unicode_test import texts_of as unicode_texts_of

NFC = normalizers.NFC()
CHINESE_AND_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# DeepSeek LLM's letters with two cases, as its tokenizer.json lists them.
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2"
    "\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+")
DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
LETTERS_WITH_MARKS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
                      r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def splits(*patterns):
    return sequence(*map(split, patterns), bytes_of_pieces())


def digits_alone():
    return sequence(pre_tokenizers.Digits(individual_digits=True), gpt2())


# By the names in tokenizer.ggml.pre: the pre-tokenizer that such models publish, their normalizer,
# whether they take a whole piece that is a token, and whether llama.cpp puts a bos in front if the file
# does not say so. Of Falcon's, `Digits` is left out, as in llama.cpp, and `Punctuation` knows the
# characters of today.
BYTE_LEVEL = {
    "default gpt-2 phi-2 jais exaone4": (gpt2(), None, False, False),
    "mpt olmo": (gpt2(), NFC, False, False),
    "smollm starcoder refact codeshell exaone minerva-7b": (digits_alone(), None, False, False),
    "command-r": (digits_alone(), NFC, False, False),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral": (splits(LLAMA3), None, True, True),
    "dbrx smaug-bpe chatglm-bpe": (splits(LLAMA3), None, False, False),
    "glm4": (splits(LLAMA3), None, True, False),
    "qwen2 stablelm2 deepseek-r1-qwen": (splits(LLAMA3.replace("{1,3}", "")), NFC, False, False),
    "qwen35": (splits(LETTERS_WITH_MARKS), None, False, False),
    "tekken": (splits(CASED % ("", "", "")), None, True, True),
    "gpt-4o llama4": (splits(CASED % (CONTRACTION, CONTRACTION, "{1,3}")), None, False, False),
    "falcon": (sequence(split(r"[!-/:-@\[-`{-~\p{P}]+"), gpt2(), split("[0-9][0-9][0-9]")), None, False,
               False),
    "bloom poro-chat gpt3-finnish": (splits(BLOOM), None, False, False),
    "deepseek-v3": (splits(*DEEPSEEK), None, False, False),
    "deepseek-coder": (sequence(*map(split, [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_AND_KOREAN]),
                                pre_tokenizers.Digits(individual_digits=True), bytes_of_pieces()),
                       None, False, False),
    "deepseek-llm": (splits(r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$",
                            CHINESE_AND_KOREAN, r"\p{N}+"), None, False, False),
}

UINT32, INT32, FLOAT, BOOL, STRING, ARRAY, UINT8 = 4, 5, 6, 7, 8, 9, 0
FORMATS = {UINT32: "<I", INT32: "<i", FLOAT: "<f", BOOL: "<?", UINT8: "<B"}


def packed(kind, value):
    if kind == STRING:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data
    if isinstance(kind, tuple):  # an array of these
        return struct.pack("<IQ", kind[0], len(value)) + b"".join(packed(kind[0], v) for v in value)
    return struct.pack(FORMATS[kind], value)


def write_gguf(path, entries):
    """A GGUF file without tensors. Entries: name -> (type, value)."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    for name, (kind, value) in entries.items():
        number = ARRAY if isinstance(kind, tuple) else kind
        data += packed(STRING, name) + struct.pack("<I", number) + packed(kind, value)
    path.write_bytes(data)


def test_word_piece(tmp_path):
    reference = word_piece("bert, uncased")
    state = json.loads(reference.to_str())
    # The file says nothing of long words.
    state["model"]["max_input_chars_per_word"] = 1000
    reference = Tokenizer.from_str(json.dumps(state))
    vocabulary = state["model"]["vocab"]
    special = {token["content"] for token in state["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    write_gguf(tmp_path / "bert.gguf", {
        "general.architecture": (STRING, "bert"),
        "tokenizer.ggml.model": (STRING, "bert"),
        "tokenizer.ggml.tokens": ((STRING,), [
            token if token in special else token[2:] if token.startswith("##") else MARK + token
            for token in tokens]),
        "tokenizer.ggml.token_type": ((INT32,), [3 if token in special else 1 for token in tokens]),
        "tokenizer.ggml.unknown_token_id": (UINT32, vocabulary["[UNK]"]),
        "tokenizer.ggml.cls_token_id": (UINT32, vocabulary["[CLS]"]),
        "tokenizer.ggml.seperator_token_id": (UINT32, vocabulary["[SEP]"]),
    })
    texts = list(texts_of(random.Random("bert")))
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert ask(tmp_path / "bert.gguf", [{"text": text} for text in texts]) == expected
    around = ask(tmp_path / "bert.gguf", [{"text": texts[0], "around": True}])[0]
    assert around == [vocabulary["[CLS]"], *expected[0], vocabulary["[SEP]"]]


def test_unigram(tmp_path):
    model = train("t5")
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    count = reference.vocab_size()
    kinds = [2 if reference.is_unknown(id) else 3 if reference.is_control(id) else 1
             for id in range(count)]
    write_gguf(tmp_path / "t5.gguf", {
        "general.architecture": (STRING, "t5"),
        "tokenizer.ggml.model": (STRING, "t5"),
        "tokenizer.ggml.tokens": ((STRING,), [reference.id_to_piece(id) for id in range(count)]),
        "tokenizer.ggml.token_type": ((INT32,), kinds),
        "tokenizer.ggml.scores": ((FLOAT,), [reference.get_score(id) for id in range(count)]),
        "tokenizer.ggml.precompiled_charsmap": ((UINT8,), charsmap_of(model)),
        "tokenizer.ggml.remove_extra_whitespaces": (BOOL, True),
        "tokenizer.ggml.unknown_token_id": (UINT32, reference.unk_id()),
        "tokenizer.ggml.eos_token_id": (UINT32, reference.eos_id()),
    })
    texts = [text.replace(MARK, "") for text in texts_of(random.Random("t5"))]
    expected = reference.encode(texts)
    assert ask(tmp_path / "t5.gguf", [{"text": text} for text in texts]) == expected
    around = ask(tmp_path / "t5.gguf", [{"text": texts[0], "around": True}])[0]
    assert around == [*expected[0], reference.eos_id()]


def write_character_rules(path, reference, **changes):
    """As Gemma 4 has it: rules, tokens of bytes, scores without a meaning."""
    model = json.loads(reference.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    entries = {
        "general.architecture": (STRING, "gemma4"),
        "tokenizer.ggml.model": (STRING, "gemma4"),
        "tokenizer.ggml.tokens": ((STRING,), tokens),
        "tokenizer.ggml.token_type": ((INT32,), [2 if token == "<unk>" else 6 if token.startswith("<0x")
                                                 else 1 for token in tokens]),
        "tokenizer.ggml.scores": ((FLOAT,), [-1000.0] * len(tokens)),
        "tokenizer.ggml.merges": ((STRING,), [" ".join(merge) for merge in model["merges"]]),
        "tokenizer.ggml.unknown_token_id": (UINT32, model["vocab"]["<unk>"]),
    }
    write_gguf(path, entries | changes)


@pytest.mark.parametrize("changes", [{}, {"tokenizer.ggml.add_space_prefix": (BOOL, False)}],
                         ids=["by default", "as the file says"])
def test_rules_of_characters(tmp_path, changes):
    """No text gets a space in front."""
    reference = characters("gemma")
    write_character_rules(tmp_path / "gemma4.gguf", reference, **changes)
    texts = list(texts_of(random.Random("gemma4")))
    expected = [reference.encode(text).ids for text in texts]
    assert ask(tmp_path / "gemma4.gguf", [{"text": text} for text in texts]) == expected
    decoded = ask(tmp_path / "gemma4.gguf", [{"ids": ids} for ids in expected])
    for ids, got in zip(expected, decoded):
        wanted = reference.decode(ids)
        assert got == {"text": wanted, "streamed": wanted}, ids


def test_rules_of_characters_must_be_there(tmp_path):
    write_character_rules(tmp_path / "gemma4.gguf", characters("gemma"),
                          **{"tokenizer.ggml.merges": ((STRING,), [])})
    run = subprocess.run([TOOL, tmp_path / "gemma4.gguf"], input="", capture_output=True, text=True,
                         check=False)
    assert run.returncode == 1
    assert "tokenizer.ggml.merges: the tokenizer model 'gemma4' has no rules" in run.stderr


def write_byte_level(path, name, model):
    """A vocabulary without control tokens but for its bos, which is its last one."""
    tokens = sorted(model["vocab"], key=model["vocab"].get) + ["<s>"]
    write_gguf(path, {
        "general.architecture": (STRING, "llama"),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, name),
        "tokenizer.ggml.tokens": ((STRING,), tokens),
        "tokenizer.ggml.token_type": ((INT32,), [1] * (len(tokens) - 1) + [3]),
        "tokenizer.ggml.merges": ((STRING,), [" ".join(merge) for merge in model["merges"]]),
        "tokenizer.ggml.bos_token_id": (UINT32, len(tokens) - 1),
    })
    return len(tokens) - 1


@pytest.mark.parametrize("row", BYTE_LEVEL)
def test_pretokenizers_split_as_published(row, tmp_path):
    pre_tokenizer, normalizer, ignore_merges, adds_bos = BYTE_LEVEL[row]
    state = json.loads(byte_level_model())
    # Tokens that merges do not lead to show whether whole pieces are taken.
    del state["model"]["merges"][::3]
    state["model"]["ignore_merges"] = ignore_merges
    reference = Tokenizer.from_str(json.dumps(state))
    reference.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        reference.normalizer = normalizer
    # Without characters that are younger than the tables of PCRE2, which are those of Python.
    texts = ["".join(c for c in text if unicodedata.category(c) != "Cn")
             for text in [*texts_of(random.Random(row)), *unicode_texts_of(row)]]
    expected = [reference.encode(text).ids for text in texts]
    for name in row.split():
        bos = write_byte_level(tmp_path / "named.gguf", name, state["model"])
        encoded = ask(tmp_path / "named.gguf", [{"text": text} for text in texts])
        for text, ids, wanted in zip(texts, encoded, expected):
            assert ids == wanted, (name, text)
        around = ask(tmp_path / "named.gguf", [{"text": texts[0], "around": True}])[0]
        assert around == [bos] * adds_bos + expected[0], name


def test_each_pretokenizer_is_compared(tmp_path):
    write_byte_level(tmp_path / "unknown.gguf", "nosuch", json.loads(byte_level_model())["model"])
    run = subprocess.run([TOOL, tmp_path / "unknown.gguf"], input="", capture_output=True, text=True,
                         check=False)
    known = re.search("pre-tokenizer 'nosuch' is not supported; supported: (.*)", run.stderr)[1]
    assert sorted(known.split(", ")) == sorted(" ".join(BYTE_LEVEL).split())


def charsmap_of(model):
    """The field precompiled_charsmap of normalizer_spec of a ModelProto."""
    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 0x7f) << shift
                shift += 7
                if byte < 0x80:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 2:
                size = varint()
                yield key >> 3, data[at:at + size]
                at += size
            elif key & 7 == 5:
                at += 4
            else:
                varint()
    normalizer = next(value for number, value in fields(model) if number == 3)
    return next(value for number, value in fields(normalizer) if number == 2)
