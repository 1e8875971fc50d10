"""WordPiece and Unigram of GGUF files, as llama.cpp's converter writes them: the ids are those of the
libraries that trained the vocabularies.
"""

import json
import random
import struct

import sentencepiece
from tokenizers import Tokenizer

from comparison import MARK, ask, texts_of
from parts_test import word_piece
from sentencepiece_test import train

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
