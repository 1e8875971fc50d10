"""Tokenizers of parts (normalizer, pre-tokenizer, model, decoder) in every combination that files in use
have, trained here and compared with Hugging Face's `tokenizers`.
"""

import base64
import json
import struct
import unicodedata

import pytest
from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

from comparison import ADDED, MARK, TRAINED_ON, ask, expect_the_same


def darts(mapping):
    """A map of characters as SentencePiece writes it: the double array of Darts, and the texts."""
    texts, places = b"", {}
    for _, to in sorted(mapping.items()):
        if to not in places:
            places[to] = len(texts)
            texts += to.encode() + b"\0"
    trie = {}
    for key, to in mapping.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = places[to]
    units, used, bases = {}, {0}, set()

    def place(node, at):
        labels = sorted(label for label in node if label is not None)
        wanted = labels + [0] * (None in node)
        base = 1
        # An offset is stored as it is below 2^21, which these maps do not reach. Two nodes with one
        # offset would have each other's children.
        while base in bases or any(base ^ label in used or base ^ label == 0 for label in wanted):
            base += 1
        bases.add(base)
        used.update(base ^ label for label in wanted)
        unit = units.get(at, 0) | (at ^ base) << 10 | (None in node) << 8
        units[at] = unit
        if None in node:
            units[base] = 1 << 31 | node[None]
        for label in labels:
            units[base ^ label] = label
        for label in labels:
            place(node[label], base ^ label)

    place(trie, 0)
    array = [units.get(i, 0) for i in range(max(units) + 1)]
    # Units that nobody uses must not look like children: their label is their place, turned.
    array = [unit if i in units else (i & 0xff) ^ 0xff for i, unit in enumerate(array)]
    packed = struct.pack(f"<{len(array)}I", *array)
    return struct.pack("<I", len(packed)) + packed + texts


def nfkc_map():
    """NFKC of the characters that tests use, white space as a space, and control characters gone."""
    mapping = {}
    for code in [*range(1, 0x600), *range(0x1e00, 0x2070), *range(0x2100, 0x2200),
                 *range(0x3000, 0x3400), *range(0xfb00, 0xfb50), *range(0xff00, 0xfff0)]:
        char = chr(code)
        to = "" if unicodedata.category(char) == "Cc" else unicodedata.normalize("NFKC", char)
        if char in "\t\n\r" or char.isspace():
            to = " "
        if to != char:
            mapping[char] = to
    for base in "aeiouAEIOU":
        for accent in "\u0300\u0301\u0308":
            mapping[base + accent] = unicodedata.normalize("NFC", base + accent)
    mapping["\r\n"] = " "
    return mapping


def precompiled():
    return normalizers.Precompiled(darts(nfkc_map()))


def sequence(*parts):
    if isinstance(parts[0], (normalizers.Normalizer)):
        return normalizers.Sequence(list(parts))
    return pre_tokenizers.Sequence(list(parts))


def metaspace(scheme="always", split=True):
    return pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=split)


def one_space():
    return normalizers.Replace(Regex(" {2,}"), " ")


# Unigram: normalizer, pre-tokenizer, decoder, byte_fallback.
UNIGRAM = {
    "t5": (precompiled, lambda: sequence(pre_tokenizers.WhitespaceSplit(), metaspace()),
           decoders.Metaspace, False),
    "albert": (lambda: sequence(normalizers.Replace("``", '"'), normalizers.Replace("''", '"'),
                                normalizers.NFKD(), normalizers.StripAccents(),
                                normalizers.Lowercase(), one_space()),
               metaspace, decoders.Metaspace, False),
    "xlm-r": (lambda: sequence(precompiled(), one_space()), metaspace, decoders.Metaspace, False),
    "nmt": (lambda: sequence(normalizers.Nmt(), normalizers.NFKC(), one_space()), metaspace,
            decoders.Metaspace, False),
    "strip": (lambda: sequence(normalizers.Strip(), normalizers.NFC()), lambda: metaspace("first"),
              lambda: decoders.Metaspace(prepend_scheme="first"), False),
    "never": (normalizers.NFD, lambda: metaspace("never"),
              lambda: decoders.Metaspace(prepend_scheme="never"), False),
    "bytes": (normalizers.NFKC, lambda: metaspace("first", False),
              lambda: decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), True),
    "digits": (normalizers.NFKC,
               lambda: sequence(pre_tokenizers.Digits(True), metaspace("first")),
               decoders.Metaspace, False),
    "punctuation": (normalizers.NFKC,
                    lambda: sequence(metaspace(), pre_tokenizers.Punctuation("isolated")),
                    decoders.Metaspace, False),
    "words": (normalizers.NFKC, pre_tokenizers.WhitespaceSplit, lambda: None, False),
}


def unigram(name):
    normalizer, pre_tokenizer, decoder, byte_fallback = UNIGRAM[name]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer()
    # Tokens that cross the borders of pieces show where these are.
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if name == "words" else metaspace()
    special = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] * byte_fallback
    tokenizer.train(TRAINED_ON, trainers.UnigramTrainer(
        vocab_size=1200, show_progress=False, special_tokens=special, unk_token="<unk>"))
    state = json.loads(tokenizer.to_str())
    state["model"]["byte_fallback"] = byte_fallback
    state["added_tokens"] = [token for token in state["added_tokens"]
                             if "<0x" not in token["content"]]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = pre_tokenizer()
    if decoder() is not None:
        tokenizer.decoder = decoder()
    return tokenizer


# WordPiece: normalizer, pre-tokenizer, decoder.
WORD_PIECE = {
    "bert, uncased": (lambda: normalizers.BertNormalizer(lowercase=True),
                      pre_tokenizers.BertPreTokenizer, decoders.WordPiece),
    "bert, cased": (lambda: normalizers.BertNormalizer(lowercase=False),
                    pre_tokenizers.BertPreTokenizer, decoders.WordPiece),
    "accents": (lambda: normalizers.BertNormalizer(lowercase=True, strip_accents=False,
                                                   handle_chinese_chars=False),
                pre_tokenizers.BertPreTokenizer, lambda: decoders.WordPiece(cleanup=False)),
    "whitespace": (lambda: sequence(normalizers.NFD(), normalizers.Lowercase(),
                                    normalizers.StripAccents()),
                   pre_tokenizers.Whitespace, decoders.WordPiece),
    "words": (normalizers.NFC, pre_tokenizers.WhitespaceSplit,
              lambda: decoders.WordPiece(cleanup=False)),
    "digits": (lambda: normalizers.BertNormalizer(clean_text=False),
               lambda: sequence(pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(False)),
               decoders.WordPiece),
}


def word_piece(name):
    normalizer, pre_tokenizer, decoder = WORD_PIECE[name]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoder()
    tokenizer.train(TRAINED_ON, trainers.WordPieceTrainer(
        vocab_size=3000, show_progress=False,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.pre_tokenizer = pre_tokenizer()
    return tokenizer


def split(pattern, behavior, invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def byte_level_end():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


# Byte-level BPE with parts that have no fast path: normalizer and pre-tokenizer.
BYTE_LEVEL = {
    "space in front": (lambda: None, lambda: pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "nfkc": (normalizers.NFKC, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "lowercase": (lambda: sequence(normalizers.NFD(), normalizers.Lowercase(),
                                   normalizers.Replace(Regex(r"\s+"), " ")),
                  lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "removed": (lambda: None, lambda: sequence(split(" ", "removed"), byte_level_end())),
    "with previous": (lambda: None,
                      lambda: sequence(split(Regex("[eo]"), "merged_with_previous"), byte_level_end())),
    "with next": (lambda: None,
                  lambda: sequence(split(Regex(r"[\se]"), "merged_with_next"), byte_level_end())),
    "contiguous": (lambda: None,
                   lambda: sequence(split(Regex("[a-e]"), "contiguous"), byte_level_end())),
    "inverted": (lambda: None,
                 lambda: sequence(split(Regex(r"\p{L}+"), "merged_with_next", True), byte_level_end())),
    "letters": (lambda: None,
                lambda: sequence(split(Regex(r"[\p{L}\s]+"), "removed", True), byte_level_end())),
    "delimiter": (lambda: None,
                  lambda: sequence(pre_tokenizers.CharDelimiterSplit(","), byte_level_end())),
    "strip": (normalizers.Strip, lambda: pre_tokenizers.ByteLevel(add_prefix_space=True)),
}


def byte_level(name):
    normalizer, pre_tokenizer = BYTE_LEVEL[name]
    tokenizer = Tokenizer(models.BPE())
    if normalizer() is not None:
        tokenizer.normalizer = normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(TRAINED_ON, trainers.BpeTrainer(
        vocab_size=1500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.pre_tokenizer = pre_tokenizer()
    return tokenizer


# BPE of characters in pieces: normalizer, pre-tokenizer, decoder, fuse_unk, byte_fallback.
CHARACTERS = {
    "metaspace": (lambda: None, metaspace, decoders.Metaspace, True, False),
    "first": (lambda: None, lambda: metaspace("first"),
              lambda: decoders.Metaspace(prepend_scheme="first"), False, True),
    "lowercase": (lambda: sequence(normalizers.NFKC(), normalizers.Lowercase()), metaspace,
                  decoders.Metaspace, True, False),
    "each unknown": (normalizers.NFC, pre_tokenizers.Whitespace, lambda: None, False, False),
    "no decoder": (lambda: None, pre_tokenizers.WhitespaceSplit, lambda: None, True, False),
}


def characters(name):
    normalizer, pre_tokenizer, decoder, fuse_unk, byte_fallback = CHARACTERS[name]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk,
                                     byte_fallback=byte_fallback))
    if normalizer() is not None:
        tokenizer.normalizer = normalizer()
    tokenizer.pre_tokenizer = pre_tokenizer()
    special = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] * byte_fallback
    tokenizer.train(TRAINED_ON, trainers.BpeTrainer(vocab_size=1200, show_progress=False,
                                                    special_tokens=special))
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"]
                             if "<0x" not in token["content"]]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    if decoder() is not None:
        tokenizer.decoder = decoder()
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoder()])
    return tokenizer


CASES = [(make, name) for make, names in [(unigram, UNIGRAM), (word_piece, WORD_PIECE),
                                          (byte_level, BYTE_LEVEL), (characters, CHARACTERS)]
         for name in names]


@pytest.mark.parametrize("make, name", CASES, ids=[f"{make.__name__}-{name}" for make, name in CASES])
def test_parts(make, name, tmp_path):
    expect_the_same(make(name), tmp_path, name, added=False)


@pytest.mark.parametrize("make, name", [(unigram, "t5"), (unigram, "strip"),
                                        (word_piece, "bert, uncased"), (byte_level, "space in front"),
                                        (characters, "first")])
def test_added_tokens(make, name, tmp_path):
    tokenizer = make(name)
    tokenizer.add_tokens(ADDED)
    expect_the_same(tokenizer, tmp_path, name, added=True)


TEMPLATE = processors.TemplateProcessing(single="[CLS] $A [SEP] [SEP]", pair="$A $B",
                                         special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
PROCESSORS = {
    "template": TEMPLATE,
    "bert": processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "roberta": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "bytes": processors.ByteLevel(),
    "sequence": processors.Sequence([processors.ByteLevel(), TEMPLATE]),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_post_processors(name, tmp_path):
    tokenizer = word_piece("bert, uncased")
    tokenizer.post_processor = PROCESSORS[name]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["This License applies.", ""]
    expected = [tokenizer.encode(text).ids for text in texts]
    assert ask(tmp_path, [{"text": text, "around": True} for text in texts]) == expected
