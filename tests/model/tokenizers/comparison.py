"""How the tests here compare a tokenizer with that of `tokenizer_tool`: texts encode, decode and decode
as a stream to the same.

Half of the texts are parts of the licence texts of the system, the other half are random Unicode.
FLOTILLA_LONG=1 compares ten times as many.
"""

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


def expect_the_same(tokenizer, folder, seed, added):
    rng = random.Random(seed)
    texts = list(texts_of(rng))
    if added:
        texts = list(with_added(rng, texts))
    tokenizer.save(str(folder / "tokenizer.json"))
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    encoded = ask(folder, [{"text": text, "special": True} for text in texts])
    for text, ids, wanted in zip(texts, encoded, expected):
        assert ids == wanted, repr(text)
    decoded = ask(folder, [{"ids": ids} for ids in expected])
    for ids, got in zip(expected, decoded):
        wanted = tokenizer.decode(ids, skip_special_tokens=True)
        assert got == {"text": wanted, "streamed": wanted}, ids
