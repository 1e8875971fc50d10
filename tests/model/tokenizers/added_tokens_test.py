"""Added tokens that count in normalised text, that the model has, too, or that are called after a byte,
compared with Hugging Face's `tokenizers`.
"""

import itertools
import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers

import parts_test
import tokenizers_test
import unicode_test
from comparison import MARK, ask, expect_the_same, texts_of, unicode_lines

# Two normal forms must not be equal.
NORMALIZED = [AddedToken("Der", normalized=True), AddedToken("<Left>", lstrip=True, normalized=True),
              AddedToken("[right]", rstrip=True, normalized=True, special=True),
              AddedToken("Word", single_word=True, normalized=True),
              AddedToken("\u00c9t\u00e9", normalized=True), AddedToken("a b", normalized=True),
              AddedToken("ord", normalized=True), AddedToken("  ", normalized=True)]
WRITTEN = [AddedToken("<Both>", lstrip=True, rstrip=True, normalized=False),
           AddedToken("Derma", normalized=False), AddedToken("rW", normalized=False, special=True),
           AddedToken("<|end|>", normalized=False, special=True), AddedToken("   ", normalized=False)]


def with_tokens(rng, tokens, texts):
    """Texts with tokens in them, side by side and inside each other, and in other normal forms."""
    changes = [str, str, str, str.lower, str.upper, lambda text: text.replace("e", "e\u0301"),
               lambda text: "".join(chr(ord(c) + 0xfee0) if "!" <= c <= "~" else c for c in text),
               lambda text: text[:-1], lambda text: text.replace(" ", MARK), lambda text: text + "x"]
    for text in texts:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(["", "", " ", "  \n", "x"]) + "".join(
                rng.choice(changes)(rng.choice(tokens).content) + rng.choice(["", "", " ", "   "])
                for _ in range(rng.randint(1, 3))) + text[at:]
        yield text


def mixed_texts(seed):
    rng = random.Random(seed)
    lines = [line[:rng.randint(0, 60)] for line in unicode_lines(seed, 60)]
    # No more than these are drawn, so a long run has the texts that others have.
    texts = [text[:rng.randint(0, 80)] for text in itertools.islice(texts_of(rng), 140)]
    return rng, [*lines, *texts]


CASES = [(tokenizers_test.byte_level, "gpt-2"), (tokenizers_test.byte_level, "qwen2"),
         (tokenizers_test.byte_level, "falcon"), (tokenizers_test.characters, "llama"),
         (tokenizers_test.characters, "gemma"), (tokenizers_test.characters, "metaspace, first"),
         (parts_test.byte_level, "lowercase"), (parts_test.byte_level, "strip"),
         (parts_test.unigram, "t5"), (parts_test.unigram, "albert"), (parts_test.unigram, "strip"),
         (parts_test.unigram, "bytes"), (parts_test.word_piece, "bert, uncased"),
         (parts_test.word_piece, "words"), (parts_test.characters, "lowercase")]


@pytest.mark.parametrize("make, name", CASES, ids=[f"{make.__name__}-{name}" for make, name in CASES])
def test_normalized(make, name, tmp_path):
    tokenizer = make(name)
    normalizer = tokenizer.normalizer
    tokens = list(WRITTEN)
    for token in NORMALIZED:
        form = token.content if normalizer is None else normalizer.normalize_str(token.content)
        # `tokenizers` has no token without text, it decodes special tokens with another form as others,
        # and its decoder ByteLevel takes the letters of added tokens for bytes.
        if form and (form == token.content or not token.special) and (
                form.isascii() or make.__name__ != "byte_level"):
            tokens.append(token)
    tokenizer.add_tokens(tokens)
    rng, texts = mixed_texts(name)
    expect_the_same(tokenizer, tmp_path, name, added=False,
                    texts=list(with_tokens(rng, tokens, texts)))


@pytest.mark.parametrize("normalized", [False, True], ids=["written", "normalized"])
def test_white_space_of_several_tokens(normalized, tmp_path):
    """One that strips may find that others took its own text, too. (`tokenizers` panics where that is
    of a token that strips to the left only.)"""
    tokenizer = tokenizers_test.byte_level("gpt-2, NFC")
    for content, left, right in [(" ", True, True), ("\n", False, False), ("<a>", False, True),
                                 ("\u2003", False, True), ("ab", True, True), ("  ", False, False)]:
        tokenizer.add_tokens([AddedToken(content, normalized=normalized and content != "  ", lstrip=left,
                                         rstrip=right, single_word=content == "ab")])
    rng = random.Random("white space")
    texts = ["".join(rng.choices([" ", "\n", "\u2003", "<a>", "a", "ab", "."], [6, 2, 2, 2, 1, 1, 1], k=12))
             for _ in range(200)]
    expect_the_same(tokenizer, tmp_path, "white space", added=False, texts=texts)


def test_normalized_special_tokens_are_found(tmp_path):
    """`tokenizers` decodes them as text, if their normal form is another text."""
    tokenizer = parts_test.word_piece("bert, uncased")
    tokenizer.add_tokens([AddedToken("<Turn>", normalized=True, special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["a <turn> b", "<TURN><Turn>", "x<\uff34urn>"]
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert ask(tmp_path, [{"text": text, "special": True} for text in texts]) == expected
    # The normalizer makes no control token of what a user writes.
    turn = tokenizer.token_to_id("<Turn>")
    assert turn in expected[0]
    for ids in ask(tmp_path, [{"text": text} for text in texts]):
        assert turn not in ids


def made_by_model(tokenizer, name):
    """Tokens that the model makes of text, by merges if it has such."""
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    made = ["".join(merge) for merge in model.get("merges", [])[:150]]
    if not made:
        vocabulary = model["vocab"]
        made = [entry[0] for entry in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)
        made = [token for token in made if len(token) > 2 and "<" not in token and "[" not in token]
    return random.Random(name).sample(made, 30)


IN_MODEL = [(tokenizers_test.byte_level, "gpt-2"), (tokenizers_test.byte_level, "llama 3"),
            (tokenizers_test.characters, "llama"), (tokenizers_test.characters, "gemma"),
            (tokenizers_test.characters, "words"), (unicode_test.byte_level, "falcon"),
            (unicode_test.characters, "gemma"), (unicode_test.unigram, "bytes"),
            (unicode_test.word_piece, "words")]


@pytest.mark.parametrize("make, name", IN_MODEL,
                         ids=[f"{make.__module__}-{make.__name__}-{name}" for make, name in IN_MODEL])
@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
def test_in_the_model(make, name, special, tmp_path):
    tokenizer = make(name)
    rng, texts = mixed_texts(name)
    tokens = [AddedToken(token, normalized=False, special=special, single_word=rng.random() < 0.6)
              for token in made_by_model(tokenizer, name)]
    tokenizer.add_tokens(tokens)
    texts = list(with_tokens(rng, tokens, texts))
    expect_the_same(tokenizer, tmp_path, name, added=False, texts=texts, decodes=not special)
    if not special:
        return
    control = {tokenizer.token_to_id(token.content) for token in tokens}
    made = [ids for ids in (tokenizer.encode(text).ids for text in texts) if control & set(ids)]
    assert len(made) > 50
    # None of them is made of what a user writes, and nothing of it is lost.
    guarded = ask(tmp_path, [{"text": text} for text in texts])
    assert not any(control & set(ids) for ids in guarded)
    if make.__name__ in ("byte_level", "characters"):
        decoded = ask(tmp_path, [{"ids": ids} for ids in guarded])
        for text, ids, got in zip(texts, guarded, decoded):
            if tokenizer.normalizer is None and name != "words":
                assert got["text"] == text, ids


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("make, name", [(unicode_test.characters, "llama"),
                                        (unicode_test.characters, "unknown and bytes"),
                                        (unicode_test.unigram, "bytes"), (unicode_test.byte_level, "gpt-2")],
                         ids=["llama", "unknown", "unigram", "byte-level"])
def test_named_after_bytes(make, name, special, tmp_path):
    tokenizer = make(name)
    tokens = [AddedToken(f"<0x{byte:02X}>", normalized=False, special=special)
              for byte in [0x0a, 0x41, 0xc3, 0xe3, 0x81, 0x9f, 0xf0] if byte % 3 or "unknown" not in name]
    tokenizer.add_tokens(tokens)
    rng, texts = mixed_texts(name)
    expect_the_same(tokenizer, tmp_path, name, added=False,
                    texts=list(with_tokens(rng, tokens + [AddedToken("<0x42>")], texts)),
                    decodes="whole characters")


@pytest.mark.parametrize("name", unicode_test.UNIGRAM)
def test_unigram_finds_names(name, tmp_path):
    """Of bytes and of the unknown token, which its vocabulary has, where normalising makes them, too."""
    expect_the_same(unicode_test.unigram(name), tmp_path, "names", added=False, decodes=False,
                    texts=["<0x41>", "a<0xE3>b<0x81><unk>", "\uff1c0x42\uff1e \u3042<0x41>\U00012345",
                           "a\uff1cunk\uff1eb", "\U00012345\uff1cunk\uff1e\U00012346"])
