"""Tokenizers of every kind that is supported, trained here and compared with Hugging Face's
`tokenizers`: encoded, decoded, and decoded as a stream, texts give the same.

They are trained on the licence texts of the system.
"""

import json
import subprocess

import pytest
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)

from comparison import ADDED, MARK, TOOL, TRAINED_ON, expect_the_same

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
         r"\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

# The regular expression of BLOOM has a class in a class.
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bytes_of_pieces():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


# Byte-level BPE: the pre-tokenizer, and whether text is brought to NFC.
BYTE_LEVEL = {
    "gpt-2": (gpt2(), False),
    "gpt-2, NFC": (gpt2(), True),
    "smollm": (sequence(pre_tokenizers.Digits(individual_digits=True), gpt2()), False),
    "command-r": (sequence(pre_tokenizers.Digits(individual_digits=True), gpt2()), True),
    "digits": (sequence(pre_tokenizers.Digits(individual_digits=False), gpt2()), False),
    "llama 3": (sequence(split(LLAMA3), bytes_of_pieces()), False),
    "qwen2": (sequence(split(LLAMA3.replace("{1,3}", "")), bytes_of_pieces()), True),
    "tekken": (sequence(split(CASED % ("", "", "")), bytes_of_pieces()), False),
    "gpt-4o": (sequence(split(CASED % (CONTRACTION, CONTRACTION, "{1,3}")), bytes_of_pieces()),
               False),
    "deepseek-v3": (sequence(*map(split, DEEPSEEK), bytes_of_pieces()), False),
    "falcon": (sequence(pre_tokenizers.Punctuation("contiguous"), gpt2(),
                        pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")),
               False),
    "bloom": (sequence(split(BLOOM), bytes_of_pieces()), False),
    "classes in classes": (sequence(split(r"[a-e[k-m[\s]][.-]-]+|[]\[z[x]-y]|[\d[o-]p-]"),
                                    bytes_of_pieces()), False),
    "lines": (sequence(split(r"^\s*\p{L}+|\s+$"), bytes_of_pieces()), False),
    "options": (sequence(split("(?m)[.;].{,3}[^a-z]|T(?i)HE|(?-m:OF.+)"), bytes_of_pieces()),
                False),
    "scripts": (sequence(split(r"\p{Katakana}+|[\p{Han}\p{^Common}]{2}"), bytes_of_pieces()),
                False),
    "punctuation": (sequence(pre_tokenizers.Punctuation("isolated"), gpt2()), False),
    "one piece": (bytes_of_pieces(), False),
}


def to_spaces(strips):
    parts = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(parts + [decoders.Strip(" ", 1, 0)] * strips)


PREPEND = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
REPLACE = normalizers.Replace(" ", MARK)


def metaspace(scheme, splits=False):
    return pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=splits)


# BPE of characters: the normalizer, the pre-tokenizer, the decoder, and whether characters without a
# token become bytes.
CHARACTERS = {
    "llama": (PREPEND, None, to_spaces(True), True),
    "gemma": (REPLACE, None, to_spaces(False), True),
    "gemma, split": (REPLACE, pre_tokenizers.Split(" ", "merged_with_previous"), to_spaces(False),
                     True),
    "metaspace, first": (None, metaspace("first"), to_spaces(True), True),
    "metaspace, always": (None, metaspace("always"), to_spaces(True), True),
    "metaspace, never": (None, metaspace("never"), to_spaces(False), True),
    "words": (None, metaspace("always", True), to_spaces(True), True),
    "words, first": (None, metaspace("first", True), to_spaces(True), True),
    "unknown characters": (PREPEND, None, to_spaces(True), False),
}

def byte_level(name, ignore_merges=False):
    pre_tokenizer, nfc = BYTE_LEVEL[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train(TRAINED_ON, trainer)
    return tokenizer


def characters(name):
    normalizer, pre_tokenizer, decoder, byte_fallback = CHARACTERS[name]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    # Lines are trained as words, or nothing would ever be learned twice.
    tokenizer.pre_tokenizer = pre_tokenizer or metaspace("never", True)
    tokenizer.decoder = decoder
    special = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] * byte_fallback
    trainer = trainers.BpeTrainer(vocab_size=2000, show_progress=False, special_tokens=special)
    tokenizer.train(TRAINED_ON, trainer)
    if pre_tokenizer is None:
        # As files have it: bytes are plain tokens, and nothing splits text.
        state = json.loads(tokenizer.to_str())
        state["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(state))
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if "<0x" not in token["content"]]
    return Tokenizer.from_str(json.dumps(state))


@pytest.mark.parametrize("ignore_merges", [False, True], ids=["merges", "whole pieces"])
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_bpe(name, ignore_merges, tmp_path):
    expect_the_same(byte_level(name, ignore_merges), tmp_path, name, added=False)


@pytest.mark.parametrize("name", CHARACTERS)
def test_bpe_of_characters(name, tmp_path):
    expect_the_same(characters(name), tmp_path, name, added=False)


@pytest.mark.parametrize("make, name", [(byte_level, "gpt-2"), (byte_level, "llama 3"),
                                        (characters, "llama"), (characters, "gemma"),
                                        (characters, "metaspace, first")])
def test_added_tokens(make, name, tmp_path):
    tokenizer = make(name)
    tokenizer.add_tokens(ADDED)
    expect_the_same(tokenizer, tmp_path, name, added=True)


@pytest.mark.parametrize("make, name", [(byte_level, "gpt-2"), (characters, "gemma")])
def test_added_tokens_that_merges_make(make, name, tmp_path):
    """Converters of Gemma list runs of spaces so: the model has these tokens, too."""
    tokenizer = make(name)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    made = ["".join(merge) for merge in merges[:200]]
    plain = [token for token in made if token.replace(MARK, "").isascii()][:60]
    assert len(plain) == 60
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    expect_the_same(tokenizer, tmp_path, name, added=False)


def test_bytes_without_a_token(tmp_path):
    """Gemma's tab is a character's token in place of a byte's. Other characters become bytes."""
    state = json.loads(characters("gemma").to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary["\t"] = vocabulary.pop("<0x09>")
    expect_the_same(Tokenizer.from_str(json.dumps(state)), tmp_path, "gemma", added=False)


@pytest.mark.parametrize("change, message", [
    (lambda s: s["model"].update(type="WordLevel"), "the model 'WordLevel'"),
    (lambda s: s["model"].update(type="Unigram"), "ByteLevel without such a decoder"),
    (lambda s: s.update(normalizer={"type": "Elsewhere"}), "the normalizer 'Elsewhere'"),
    (lambda s: s.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAA"}),
     "precompiled_charsmap has 2 bytes"),
    (lambda s: s.update(pre_tokenizer={"type": "UnicodeScripts"}), "the pre-tokenizer 'UnicodeScripts'"),
    (lambda s: s.update(pre_tokenizer={"type": "Whitespace"}), "that has no ByteLevel"),
    (lambda s: s.update(decoder={"type": "CTC"}), "the decoder 'CTC'"),
    (lambda s: s.update(post_processor={"type": "Elsewhere"}), "the post_processor 'Elsewhere'"),
    (lambda s: s["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix '</w>'"),
    (lambda s: s.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}),
     r"has \w"),
    # Oniguruma takes such characters for one, and folds properties in classes.
    *((lambda s, pattern=pattern: s.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}),
       message) for pattern, message in [
           ("(?i:ss)", "another case of one"), ("a(?i)x|S(?:t|y)", "another case of one"),
           ("(?i:s{1}t)", "another case of one"), ("(?i:\u00df)", "another case of one"),
           ("(?i:[\u00c0-\u00ff])", "another case of one"), (r"(?i:[\p{Lu}])", "a property in a class")]),
])
def test_what_is_unknown_is_refused_by_name(change, message, tmp_path):
    state = json.loads(byte_level("gpt-2").to_str())
    change(state)
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    run = subprocess.run([TOOL, tmp_path], input="", capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert message in run.stderr
