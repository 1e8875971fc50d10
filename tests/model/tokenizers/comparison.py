"""How the tests here compare a tokenizer with that of `tokenizer_tool`: texts encode, decode and decode
as a stream to the same.

Half of the texts are parts of the licence texts of the system, the other half are random Unicode.
FLOTILLA_LONG=1 compares ten times as many.
"""

import functools
import json
import os
import pathlib
import random
import subprocess

from tokenizers import AddedToken

TOOL = os.environ["FLOTILLA_TOKENIZER_TOOL"]
LONG = bool(os.environ.get("FLOTILLA_LONG"))
TEXTS = 2000 if LONG else 200
LICENCES = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
TRAINED_ON = [str(path) for path in LICENCES[:6]]
MARK = "\u2581"

ADDED = [AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False, special=True),
         AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
         AddedToken("word", single_word=True, normalized=False),
         AddedToken("<|end|>", normalized=False, special=True)]


def random_text(rng):
    """Of scripts and planes, with white space of all kinds."""
    ranges = [(0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x900, 0xe7f),
              (0x1e00, 0x206f), (0x2580, 0x2582), (0x3000, 0x30ff), (0x4e00, 0x4fff),
              (0xac00, 0xacff), (0x1f300, 0x1f64f)]
    parts = []
    for _ in range(rng.randint(1, 40)):
        low, high = rng.choice(ranges)
        parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
        parts.append(rng.choice(["", "", " ", "  ", "\n", "\t", "\r\n", " 12345 ", "'s", MARK]))
    return "".join(parts)


# Of scripts: where their letters are, and what else belongs to their words.
SCRIPTS = [
    ((0x61, 0x7a), "'\u2019-"), ((0xc0, 0x17f), "\u0301\u0308\u00ad"), ((0x1e00, 0x1eff), "\u0323"),
    ((0x391, 0x3ce), "\u0301\u03c2"), ((0x410, 0x44f), "\u0306\u0451"), ((0x5d0, 0x5ea), "\u05b8\u05be"),
    ((0x621, 0x64a), "\u0651\u064b\u200c"), ((0x905, 0x939), "\u093e\u094d\u0902"),
    ((0xe01, 0xe2e), "\u0e31\u0e48"), ((0x10d0, 0x10f0), ""), ((0x1200, 0x1248), "\u1361"),
    ((0x1780, 0x17b3), "\u17b6\u17d2"), ((0x3041, 0x3096), "\u3099\u30fc"), ((0x30a1, 0x30fa), "\u30fc"),
    ((0x4e00, 0x4e80), "\u3001\u3005"), ((0xac00, 0xac80), ""), ((0x1100, 0x1175), ""),
    ((0xff21, 0xff5a), "\uff0c"), ((0x10400, 0x1044f), ""), ((0x1d400, 0x1d433), ""),
    ((0x2c80, 0x2ce3), "\u2cef"), ((0x20000, 0x20040), ""), ((0xa000, 0xa040), "\ua490"),
    ((0x1f600, 0x1f64f), "\u200d\ufe0f\U0001f3fd"), ((0x1f1e6, 0x1f1ff), ""), ((0x2600, 0x2660), "\ufe0f"),
    ((0x2190, 0x21ff), ""), ((0xa1, 0xbf), ""), ((0x2070, 0x209c), ""), ((0x2150, 0x2189), ""),
    ((0xfb00, 0xfb06), ""), ((0x2e00, 0x2e5d), ""), ((0x16a0, 0x16f0), ""), ((0xe000, 0xe010), ""),
    # Younger than Unicode 9, with marks and compatibility forms.
    ((0x1fbf0, 0x1fbf9), "\u1df6\u0323\u32ff"), ((0xa7f2, 0xa7f4), "\u1df8\u0316"),
]
DIGITS = [0x30, 0x660, 0x966, 0xe50, 0xff10, 0x1d7ce, 0x2460]  # zeros
BETWEEN = [" "] * 24 + ["", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2009", "\u200b", ", ", ". ", "\u3002",
                        "\u061f ", " \u2014 ", "...", "\u00bf", MARK, "\r\n"]


@functools.cache
def unicode_lines(seed, count, sample=""):
    """Lines of words of all scripts, which repeat themselves. The seed makes the words; with another
    sample it makes other lines of them."""
    rng = random.Random(seed)
    words = []
    for (low, high), more in SCRIPTS:
        for _ in range(12):
            word = "".join(chr(rng.randint(low, high)) + (rng.choice(more) if more and rng.random() < 0.2
                                                          else "") for _ in range(rng.randint(1, 6)))
            words.append(rng.choice([word, word, word.upper(), word.title()]))
    for zero in DIGITS:
        words += ["".join(chr(zero + rng.randrange(10)) for _ in range(rng.randint(1, 5)))
                  for _ in range(5)]
    rng.shuffle(words)
    rng = random.Random(f"{seed}/{sample}")
    weights = [1 / (1 + place) ** 0.7 for place in range(len(words))]
    return ["".join(word + rng.choice(BETWEEN)
                    for word in rng.choices(words, weights, k=rng.randint(5, 25)))
            for _ in range(count)]


def texts_of(rng):
    licences = [path.read_text() for path in LICENCES]
    for index in range(TEXTS):
        if index % 2:
            yield random_text(rng)
        else:
            text = rng.choice(licences)
            begin = rng.randrange(len(text))
            yield text[begin:begin + rng.randint(1, 300)]


def with_added(rng, texts):
    for text in texts:
        for token in rng.sample(ADDED, 3):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(["", " ", "  \n"]) + token.content + text[at:]
        yield text


def ask(folder, questions):
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    run = subprocess.run([TOOL, folder], input=lines, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def expect_the_same(tokenizer, folder, seed, added, texts=None, decodes=True):
    rng = random.Random(seed)
    texts = texts or list(texts_of(rng))
    if added:
        texts = list(with_added(rng, texts))
    tokenizer.save(str(folder / "tokenizer.json"))
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    encoded = ask(folder, [{"text": text, "special": True} for text in texts])
    for text, ids, wanted in zip(texts, encoded, expected):
        assert ids == wanted, repr(text)
    if not decodes:
        return
    # Without a decoder and with WordPiece's, `tokenizers` puts spaces around the names of control tokens.
    decoder = json.loads(tokenizer.to_str())["decoder"]
    joins_words = decoder is None or decoder["type"] == "WordPiece"
    for special in [False] if joins_words else [False, True]:
        wanted = [(ids, tokenizer.decode(ids, skip_special_tokens=not special)) for ids in expected]
        if decodes == "whole characters":  # of other bytes, each is U+FFFD in `tokenizers`
            wanted = [(ids, text) for ids, text in wanted if "\ufffd" not in text]
            assert len(wanted) > len(texts) / 8
        decoded = ask(folder, [{"ids": ids, "special": special} for ids, _ in wanted])
        for (ids, text), got in zip(wanted, decoded):
            assert got == {"text": text, "streamed": text}, ids
