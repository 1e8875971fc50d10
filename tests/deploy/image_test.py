"""The image gets the packages that the program needs, and its Dockerfile gets the files."""

import fnmatch
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from manifests import ROOT

TOOL = ROOT / "deploy/docker/runtime-packages"
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text()


def program():
    return os.environ.get("FLOTILLA_BIN", str(ROOT / "build/release/bin/flotilla"))


def run(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)


def libraries(path):
    """The real paths of the shared libraries that a program loads."""
    listing = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    return {os.path.realpath(found) for found in re.findall(r"(/\S+) \(0x", listing)}


def test_packages_hold_every_library():
    result = run(program())
    assert result.returncode == 0, result.stderr
    packages = result.stdout.split()
    assert packages == sorted(set(packages))
    assert not [name for name in packages if name.endswith("-dev")]
    files = subprocess.run(["dpkg-query", "-L", *packages], capture_output=True, text=True,
                           check=True).stdout.split("\n")
    assert libraries(program()) - {os.path.realpath(file) for file in files if file} == set()


@pytest.fixture
def linked(tmp_path):
    """A program with a library of its own, which what(name) builds."""
    def build(name):
        (tmp_path / "empty.c").write_text("int f(void) { return 0; }")
        (tmp_path / "main.c").write_text("int f(void); int main(void) { return f(); }")
        library, target = tmp_path / f"lib{name}.so", tmp_path / "program"
        for command in (["gcc", "-shared", "-o", library, tmp_path / "empty.c"],
                        ["gcc", "-o", target, tmp_path / "main.c", library]):
            subprocess.run(command, check=True)
        return target, library
    return build


def test_a_library_of_no_package_is_an_error(linked):
    target, library = linked("mine")
    result = run(target)
    assert result.returncode != 0 and f"no package holds {library}" in result.stderr


def test_a_missing_library_is_an_error(linked):
    target, library = linked("gone")
    library.unlink()
    result = run(target)
    assert result.returncode != 0 and "not found" in result.stderr


@pytest.mark.parametrize("argument", ["/etc/passwd", "/nowhere"])
def test_what_is_no_program_is_an_error(argument):
    result = run(argument)
    assert result.returncode != 0 and result.stdout == ""


def test_scripts_are_tidy():
    subprocess.run([shutil.which("shellcheck") or "shellcheck", TOOL], check=True)


def test_the_build_context_has_what_the_build_reads():
    """It leaves out files that are large or private."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines()
               if line and not line.startswith("#")]
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists(), name
            assert not any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
    folders = re.findall(r"^ *add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(),
                         re.MULTILINE)
    assert {"cli", "tests"} <= set(folders)
    assert not set(folders + ["cmake", "scripts", "deploy/docker"]) & set(ignored)
    assert {".git", ".venv", "build"} <= set(ignored)


def test_an_argument_of_the_build_brings_cuda():
    """Its compiler is installed where CMake looks for it, and only in the first stage."""
    build, image = re.split(r"^FROM .*", DOCKERFILE, flags=re.MULTILINE)[1:]
    steps = ["ARG FLOTILLA_CUDA=off\n", "RUN source scripts/lib.sh && install_cuda\n", "COPY . .\n",
             "source scripts/lib.sh && build release flotilla "]
    assert [build.count(step) for step in steps] == [1, 1, 1, 1]
    assert sorted(steps, key=build.index) == steps
    assert "cuda" not in image.lower() and ".venv" not in image


@pytest.mark.parametrize("step", ["install_packages", "install_cuda"])
def test_a_step_before_the_sources_has_its_files(step):
    function = re.search(rf"^{step}\(\) {{\n(.*?)^}}", (ROOT / "scripts/lib.sh").read_text(),
                         re.MULTILINE | re.DOTALL)[1]
    before = DOCKERFILE[:DOCKERFILE.index(f"&& {step}")]
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", before, re.MULTILINE)
              for name in line.split()]
    needed = set(re.findall(r"\bscripts/\w+\.\w+", function))
    assert len(needed) == 1 and {"scripts/lib.sh", *needed} <= set(copied)


def test_the_program_runs_as_the_user_of_the_manifests():
    base = (ROOT / "deploy/k8s/base/router.yaml").read_text()
    user = re.search(r"runAsUser: (\d+)", base)[1]
    assert f"USER {user}:{user}\n" in DOCKERFILE
    assert f"--uid {user} " in DOCKERFILE and f"--gid {user} " in DOCKERFILE


def test_no_model_is_in_the_image():
    assert not list(pathlib.Path(ROOT / "deploy").rglob("*.gguf"))
    assert "fetch_model" not in DOCKERFILE
