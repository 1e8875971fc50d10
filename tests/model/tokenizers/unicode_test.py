"""Tokenizers that are trained on text of many scripts, and compared with Hugging Face's `tokenizers` on
such text.
"""

import functools
import json
import random

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from comparison import MARK, expect_the_same, unicode_lines
from parts_test import precompiled
from tokenizers_test import CASED, CONTRACTION, DEEPSEEK, LLAMA3, bytes_of_pieces, gpt2, metaspace
from tokenizers_test import PREPEND, REPLACE, sequence, split, to_spaces

SEED = "scripts"


def texts_of(name):
    """Lines of other words than those of training, in part, and parts of lines."""
    rng = random.Random(name)
    for line in unicode_lines(SEED, 100, sample=name) + unicode_lines(name, 100):
        begin = rng.randrange(len(line))
        yield line[begin:begin + rng.randint(1, 120)]


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(unicode_lines(SEED, 600), trainer)
    return tokenizer


def digits(individual):
    return pre_tokenizers.Digits(individual_digits=individual)


def punctuation(behavior):
    return pre_tokenizers.Punctuation(behavior)


# Byte-level BPE: the pre-tokenizer, and the normalizer. What is behind ByteLevel splits the characters
# that stand for bytes, of which some count as digits, letters or punctuation.
BYTE_LEVEL = {
    "gpt-2": (gpt2(), None),
    "llama 3": (sequence(split(LLAMA3), bytes_of_pieces()), None),
    "qwen2": (sequence(split(LLAMA3.replace("{1,3}", "")), bytes_of_pieces()), normalizers.NFC()),
    "gpt-4o": (sequence(split(CASED % (CONTRACTION, CONTRACTION, "{1,3}")), bytes_of_pieces()), None),
    "deepseek-v3": (sequence(*map(split, DEEPSEEK), bytes_of_pieces()), None),
    "smollm": (sequence(digits(True), gpt2()), None),
    "cases": (sequence(split("(?i)[k-t\u03b1-\u03c9]+|'S|\u0438|\\p{Lu}x|a(?-i)ss"), bytes_of_pieces()),
              None),
    "punctuation": (sequence(punctuation("isolated"), gpt2()), None),
    "falcon": (sequence(punctuation("contiguous"), gpt2(), digits(False), split("[0-9][0-9][0-9]")),
               None),
    "digits behind": (sequence(bytes_of_pieces(), digits(True)), None),
    "punctuation behind": (sequence(gpt2(), punctuation("merged_with_previous"),
                                    punctuation("isolated")), None),
    "letters behind": (sequence(gpt2(), split(r"\p{Lu}+|\p{N}")), normalizers.NFKC()),
    "words behind": (sequence(bytes_of_pieces(), pre_tokenizers.BertPreTokenizer()), None),
    "removed behind": (sequence(gpt2(), pre_tokenizers.Split("\u0120", "removed")), None),
    "gpt-2 twice": (sequence(gpt2(), pre_tokenizers.ByteLevel(add_prefix_space=True)), None),
    "between": (sequence(bytes_of_pieces(), digits(True), pre_tokenizers.ByteLevel(True),
                         pre_tokenizers.Split("\u00e3", "merged_with_next")), None),
}


@functools.cache
def byte_level_model():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = bytes_of_pieces()
    tokenizer.decoder = decoders.ByteLevel()
    # Tokens that cross the borders of pieces show where these are.
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False, max_token_length=12,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return train(tokenizer, trainer).to_str()


def byte_level(name):
    pre_tokenizer, normalizer = BYTE_LEVEL[name]
    tokenizer = Tokenizer.from_str(byte_level_model())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def with_bytes(state, kept=lambda byte: True):
    """The tokens of bytes are no added ones; those that are not kept become others."""
    state["added_tokens"] = [token for token in state["added_tokens"] if "<0x" not in token["content"]]
    vocabulary = state["model"]["vocab"]
    for byte in range(256):
        if not kept(byte):
            at = f"<0x{byte:02X}>"
            if isinstance(vocabulary, dict):
                vocabulary[f"<no {byte}>"] = vocabulary.pop(at)
            else:
                next(pair for pair in vocabulary if pair[0] == at)[0] = f"<no {byte}>"
    return Tokenizer.from_str(json.dumps(state))


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# BPE of characters: normalizer, pre-tokenizer, decoder, fuse_unk, and which bytes have tokens. Where
# some have none, unknown characters stand beside bytes.
CHARACTERS = {
    "llama": (PREPEND, None, to_spaces(True), True, lambda byte: True),
    "gemma": (REPLACE, None, to_spaces(False), False, lambda byte: True),
    "words": (None, metaspace("always", True), to_spaces(True), True, lambda byte: True),
    "unknown and bytes": (PREPEND, None, to_spaces(True), True, lambda byte: byte % 3),
    "each unknown and bytes": (REPLACE, None, to_spaces(False), False, lambda byte: byte % 3),
    "words, unknown and bytes": (normalizers.NFKC(), metaspace("first", True), to_spaces(True), True,
                                 lambda byte: byte % 5),
    "unknown": (PREPEND, None, to_spaces(True), False, lambda byte: False),
    "no unknown": (REPLACE, None, to_spaces(False), None, lambda byte: byte % 3),
}


def characters(name):
    normalizer, pre_tokenizer, decoder, fuse_unk, kept = CHARACTERS[name]
    tokenizer = Tokenizer(models.BPE(unk_token=None if fuse_unk is None else "<unk>",
                                     fuse_unk=bool(fuse_unk), byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or metaspace("never", True)
    tokenizer.decoder = decoder
    train(tokenizer, trainers.BpeTrainer(vocab_size=1500, limit_alphabet=600, show_progress=False,
                                         special_tokens=["<unk>"] + BYTES))
    state = json.loads(tokenizer.to_str())
    if pre_tokenizer is None:
        state["pre_tokenizer"] = None
    return with_bytes(state, kept)


# Unigram: normalizer, pre-tokenizer, and which bytes have tokens.
UNIGRAM = {
    "t5": (precompiled(), sequence(pre_tokenizers.WhitespaceSplit(), metaspace("always", True)),
           lambda byte: False),
    "bytes": (normalizers.NFKC(), metaspace("first"), lambda byte: True),
    "unknown and bytes": (normalizers.NFD(), metaspace("always", True), lambda byte: byte % 3),
}


def unigram(name):
    normalizer, pre_tokenizer, kept = UNIGRAM[name]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = metaspace("always", True)
    train(tokenizer, trainers.UnigramTrainer(
        vocab_size=1800, show_progress=False, special_tokens=["<unk>"] + BYTES, unk_token="<unk>"))
    state = json.loads(tokenizer.to_str())
    state["model"]["byte_fallback"] = True
    tokenizer = with_bytes(state, kept)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


# WordPiece: normalizer and pre-tokenizer.
WORD_PIECE = {
    "bert, uncased": (normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()),
    "bert, cased": (normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()),
    "words": (normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]),
              pre_tokenizers.Whitespace()),
    "punctuation": (normalizers.NFKC(), sequence(pre_tokenizers.WhitespaceSplit(),
                                                 punctuation("contiguous"), digits(True))),
}


def word_piece(name):
    normalizer, pre_tokenizer = WORD_PIECE[name]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=2500, limit_alphabet=700,
                                               show_progress=False, special_tokens=["[UNK]"]))
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


CASES = [(make, name) for make, names in [(byte_level, BYTE_LEVEL), (characters, CHARACTERS),
                                          (unigram, UNIGRAM), (word_piece, WORD_PIECE)]
         for name in names]


@pytest.mark.parametrize("make, name", CASES, ids=[f"{make.__name__}-{name}" for make, name in CASES])
def test_unicode(make, name, tmp_path):
    print(f"trained on the lines of seed {SEED!r}, compared on those of {name!r}")
    expect_the_same(make(name), tmp_path, name, added=False, texts=list(texts_of(name)))
