#!/usr/bin/env python3
"""Checks every #include and every namespace against the folder table of docs/architecture.md.

The table below is that page as data. A folder may include itself, the folders in
`may` and the libraries in `libs`; everything else is a violation. What a folder
declares lies in the namespace of that folder. Run it from anywhere. It prints one
line per violation and exits 1 if there is any.
"""

import dataclasses
import pathlib
import re
import sys

# First path component, first two (or whole name) of an external include -> library.
LIBRARIES = {
    "absl": "absl", "grpc": "grpc", "grpcpp": "grpc", "google": "protobuf", "boost": "boost",
    "nlohmann": "json", "CLI": "cli11", "spdlog": "spdlog", "fmt": "spdlog",
    "prometheus": "prometheus", "pcre2.h": "pcre2", "unicode": "icu", "xxhash.h": "xxhash",
    "gtest": "gtest", "gmock": "gtest", "benchmark": "benchmark",
    "openssl": "openssl", "immintrin.h": "simd", "cpuid.h": "simd", "mpi.h": "mpi",
    "boost/context": "fibers", "cuda_runtime.h": "cuda", "cuda_runtime_api.h": "cuda",
    "nccl.h": "cuda", "xgrammar": "xgrammar", "matcher_parts.h": "xgrammar",
}

# Pure folders have only values and pure functions. These includes would let a core see
# time, threads, I/O or randomness.
IMPURE = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|atomic|semaphore|barrier|latch|"
    r"stop_token|chrono|ctime|time\.h|random|iostream|fstream|filesystem|"
    r"absl/(synchronization|time|random|flags|debugging|log)/.*)$")


@dataclasses.dataclass(frozen=True)
class Folder:
    may: tuple = ()          # folders it may include besides itself
    libs: tuple = ()         # libraries it may include besides std
    pure: bool = False       # no clock, thread, I/O, randomness
    generated: bool = False  # may include generated protobuf headers


COMMON = ("common/types", "common/rt", "common/obs", "common/auth")

# Longest matching prefix wins.
FOLDERS = {
    "common/types": Folder(libs=("absl",), pure=True),
    "common/rt": Folder(may=("common/types",), libs=("absl", "system")),
    "common/obs": Folder(may=("common/types", "common/rt"),
                         libs=("absl", "boost", "prometheus", "spdlog", "system")),
    # How secrets are kept, compared and read.
    "common/auth": Folder(may=("common/types", "common/rt", "common/obs"),
                          libs=("absl", "openssl", "system")),
    # Workloads that are read or made, and tables and charts. Tools share them.
    "common/traces": Folder(libs=("absl", "json"), pure=True),
    "common/report": Folder(libs=("absl",), pure=True),
    "proto/codec": Folder(may=COMMON, libs=("absl", "grpc", "protobuf"), generated=True),
    # Streams between the fleet's processes. It has no messages of its own.
    "rpc": Folder(may=COMMON, libs=("absl", "grpc", "openssl", "system")),
    "model": Folder(may=COMMON, libs=("absl", "json", "pcre2", "icu", "xxhash", "system")),
    "kernels": Folder(may=COMMON, libs=("absl", "simd", "xxhash", "system")),
    # What nvcc compiles.
    "kernels/cuda": Folder(may=("kernels", "kernels/cuda/simulated", "common/types"), libs=("cuda",)),
    "kernels/cuda/simulated": Folder(may=("kernels",), libs=("fibers", "system")),
    "scheduler/core": Folder(may=("common/types",), libs=("absl",), pure=True),
    "worker/core": Folder(may=("common/types",), libs=("absl",), pure=True),
    "router/core": Folder(may=("common/types",), libs=("absl",), pure=True),
    # The grammars of answers. A schema is JSON.
    "router/core/constraint": Folder(may=("common/types",), libs=("absl", "json"), pure=True),
    # Models' calls of tools. Their arguments are JSON, and schemas say what they may be.
    "router/core/tools": Folder(may=("common/types", "router/core/constraint"),
                                libs=("absl", "json"), pure=True),
    "scheduler": Folder(may=("scheduler/core", "proto/codec") + COMMON,
                        libs=("absl", "grpc", "protobuf", "system")),
    # gRPC stubs and services derive from generated classes.
    "scheduler/remote": Folder(may=("scheduler", "proto/codec", "rpc") + COMMON,
                               libs=("absl", "grpc", "protobuf", "system"), generated=True),
    # The cores in virtual time, without clock and I/O.
    "simulator": Folder(may=("scheduler/core", "worker/core", "common/types", "common/traces",
                             "common/report"),
                        libs=("absl", "json"), pure=True),
    "loadtest/core": Folder(may=("common/traces",), libs=("absl", "json"), pure=True),
    # A client of servers: it knows none of the folders that serve.
    "loadtest": Folder(may=("loadtest/core", "common/traces", "common/report") + COMMON,
                       libs=("absl", "boost", "json", "openssl", "system")),
    "loadtest/grpc": Folder(may=("loadtest", "proto/codec"), libs=("absl", "grpc", "protobuf", "boost"),
                            generated=True),
    "worker/comm": Folder(may=("worker/core",) + COMMON, libs=("absl", "mpi", "system")),
    "worker/compute": Folder(may=("worker/core", "worker/comm", "worker/compute/decoder", "model",
                                  "kernels") + COMMON,
                             libs=("absl", "system")),
    # Memory and queues of a GPU, and a simulated one.
    "worker/device": Folder(may=("kernels",) + COMMON, libs=("absl", "cuda")),
    "worker/compute/cuda": Folder(may=("worker/core", "worker/comm", "worker/compute", "worker/device",
                                       "model", "kernels") + COMMON, libs=("absl", "system")),
    # The model's graph. It sees no kernel, thread or device.
    "worker/compute/decoder": Folder(may=("worker/core", "worker/comm", "worker/compute", "model",
                                          "common/types"), libs=("absl",), pure=True),
    # Grammars of structured output.
    "worker/constraint": Folder(may=("worker/group", "model") + COMMON,
                                libs=("absl", "json", "system", "xgrammar")),
    "worker/exec": Folder(may=("worker/core", "worker/comm", "worker/compute", "worker/constraint",
                               "worker/device", "worker/group", "model", "kernels", "proto/codec") + COMMON,
                          libs=("absl", "mpi", "xxhash", "system")),
    # Makes models: it runs layers on the backend of CPUs, and writes what model/ reads.
    "quantize": Folder(may=("worker/core", "worker/comm", "worker/compute", "model", "kernels") + COMMON,
                       libs=("absl", "json", "xxhash", "system")),
    "worker/group": Folder(may=("worker/core", "proto/codec") + COMMON, libs=("absl", "system")),
    "worker/hosts": Folder(may=("worker/group", "proto/codec", "rpc") + COMMON,
                           libs=("absl", "grpc", "protobuf", "system"), generated=True),
    "worker/agent": Folder(may=("proto/codec", "rpc") + COMMON,
                           libs=("absl", "grpc", "protobuf", "system"), generated=True),
    "router": Folder(may=("router/batch", "router/files", "router/core", "router/core/constraint",
                          "router/core/tools", "model", "proto/codec") + COMMON,
                     libs=("absl", "grpc", "protobuf", "boost", "json", "pcre2", "icu", "system")),
    # A batch's lines and which of them are to be answered.
    "router/batch": Folder(may=("router", "common/types"), libs=("absl", "json"), pure=True),
    # Files and batches of clients, on a disk.
    "router/files": Folder(may=("router", "router/batch") + COMMON, libs=("absl", "system")),
    "router/remote": Folder(may=("router", "router/core", "proto/codec", "rpc") + COMMON,
                            libs=("absl", "grpc", "protobuf", "system"), generated=True),
    "router/grpc": Folder(may=("router", "router/core", "router/core/constraint", "model",
                               "proto/codec", "rpc") + COMMON,
                          libs=("absl", "grpc", "protobuf", "system"), generated=True),
    "cli": Folder(may=("common", "proto/codec", "rpc", "model", "kernels", "scheduler", "simulator",
                       "loadtest", "worker", "router", "quantize"),
                  libs=("absl", "grpc", "boost", "cli11", "json", "spdlog", "system")),
    "tests": Folder(may=("common", "proto", "rpc", "model", "kernels", "scheduler", "simulator", "loadtest",
                         "worker", "router", "quantize", "cli"),
                    libs=tuple(set(LIBRARIES.values())) + ("system",), generated=True),
}

# The namespace of all that a folder declares. The folders without an entry here declare in
# `flotilla`. A test of one folder declares in that folder's namespace, and the other tests
# declare in `flotilla::testing`. A benchmark may declare in the namespace of what it measures.
NAMESPACES = {folder: "flotilla::" + folder for folder in
              ("rpc", "model", "kernels", "scheduler", "worker", "router", "simulator", "loadtest",
               "quantize", "cli")}
NAMESPACES |= {"model/jinja": "flotilla::jinja", "proto/codec": "flotilla::codec",
               "kernels/cuda": "flotilla::kernels::cuda", "gpu_check": "flotilla::kernels::cuda"}

# Folders behind a door: what the files that begin so may include. Everyone else uses the door.
HIDDEN = {"model/gguf/": ("model/gguf/", "model/checkpoint.cc", "quantize/", "tests/model/", "tests/quantize/",
                          "tests/fuzz/"),
          "model/huggingface/": ("model/huggingface/", "model/checkpoint.cc", "quantize/", "tests/model/",
                                 "tests/quantize/", "tests/fuzz/"),
          "worker/compute/cpu/": ("worker/compute/cpu/", "worker/exec/rank.cc", "quantize/", "tests/golden/",
                                  "tests/gpu_check/", "tests/worker/"),
          "worker/compute/cuda/": ("worker/compute/cuda/", "worker/exec/rank.cc", "tests/"),
          "model/weights/": ("model/weights/", "model/tensor.cc", "tests/model/"),
          "kernels/packing/": ("kernels/", "tests/kernels/")}

# What the files of a folder may not even name, although headers that they include do.
UNNAMED = {"worker/compute/decoder/": re.compile(r"\bkernels::|\bThreadPool\b|\bClock\b")}

# What only announces types of other files opens the namespace of their folder.
NAMESPACE = re.compile(r"^(?:inline )?namespace (\w[\w:]*) \{(\n(?:(?:class|struct) \w+;\n)+\})?", re.MULTILINE)
CLOSED = re.compile(r"^\}  // namespace flotilla", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".cc", ".cu"}


def folder_of(path):
    """The longest key of FOLDERS that is a prefix of `path`, or None."""
    matches = [f for f in FOLDERS if path == f or path.startswith(f + "/")]
    return max(matches, key=len, default=None)


def library_of(name, quoted):
    parts = name.split("/")
    for head in ("/".join(parts[:2]), parts[0]):
        if head in LIBRARIES:
            return LIBRARIES[head]
    if quoted:
        return None
    # Headers of C++ and of the C library have no folder; the rest are the system's headers.
    if "." not in name or name in ("stdint.h", "string.h", "stddef.h", "math.h"):
        return "std"
    return "system"


def check_include(source, name, quoted, files):
    """Why `source` (a path in `files`) may not include `name`, or None."""
    own = folder_of(source)
    if own is None:
        return "lies in no folder of the table"
    rule = FOLDERS[own]
    if rule.pure and IMPURE.match(name):
        return f"{own} is pure: it must not see <{name}>"
    if name.endswith(".pb.h"):
        return None if rule.generated else "generated protobuf types stop at proto/codec"
    for folder, users in HIDDEN.items():
        if name.startswith(folder) and not source.startswith(users):
            return f"{folder} is hidden: only {', '.join(users)} may include it"
    if name in files:
        if not quoted:
            return f'include "{name}" with quotes'
        target = folder_of(name)
        allowed = any(target == f or (target or "").startswith(f + "/") for f in (own,) + rule.may)
        # A folder may include its own subfolders only if the table has no row for them.
        if allowed and target != own and target.startswith(own + "/") and target not in rule.may:
            allowed = False
        return None if allowed else f"{own} must not include {target}"
    library = library_of(name, quoted)
    if library is None:
        return f'"{name}" is no root-relative path of the repository'
    if library != "std" and library not in rule.libs:
        return f"{own} must not use {library}"
    return None


def foreign_of_cuda(source, includes):
    """The libraries that `source` includes, itself or through headers, and that a machine with nvcc
    alone lacks, as (header, include). `includes`: those of each file, as (name, quoted)."""
    found, seen = set(), {source}
    left = [source]
    while left:
        file = left.pop()
        for name, quoted in includes[file]:
            if name not in includes:
                if library_of(name, quoted) not in ("std", "cuda", "simd"):
                    found.add((file, name))
            elif name not in seen:
                seen.add(name)
                left.append(name)
    return sorted(found)


def namespace_of(path):
    """The namespace that the file `path` declares in."""
    test = path.startswith("tests/")
    tested = path.removeprefix("tests/")
    matches = [f for f in NAMESPACES if tested.startswith(f + "/")]
    if matches:
        return NAMESPACES[max(matches, key=len)]
    return "flotilla::testing" if test and not tested.startswith("common/") else "flotilla"


def check_namespace(path, name, announces=False):
    """Why the file `path` may not open namespace `name`, or None.

    `announces` says that it only holds forward declarations. They follow the rule of includes.
    """
    own = namespace_of(path)
    if announces:
        folder = folder_of(path)
        rule = FOLDERS[folder]
        seen = any(f"{key}/".startswith(f"{f}/") or f"{f}/".startswith(f"{key}/")
                   for key, ns in NAMESPACES.items() if ns == name for f in (folder,) + rule.may)
        if name == "flotilla" or seen or LIBRARIES.get(name.split("::")[0]) in rule.libs:
            return None
        return f"{folder} must not announce types of {name}"
    if name == own or name.startswith(own + "::") and own != "flotilla":
        return None
    if path.startswith("tests/bench/") and name in NAMESPACES.values():
        return None
    return f"this folder declares in {own}"


def check_tree(root):
    """All violations under `root`, as (path, line, include, reason)."""
    root = pathlib.Path(root)
    tops = sorted({f.split("/")[0] for f in FOLDERS})
    files = {str(p.relative_to(root)) for top in tops for p in (root / top).rglob("*")
             if p.suffix in SUFFIXES}
    texts = {path: (root / path).read_text(encoding="utf-8") for path in sorted(files)}
    includes = {path: [(match[2], match[1] == '"') for match in INCLUDE.finditer(text)]
                for path, text in texts.items()}
    violations = []
    for path, text in texts.items():
        if path.endswith(".cu"):
            violations += [(path, 1, name, f"{file} includes it, but nvcc has no library beside it")
                           for file, name in foreign_of_cuda(path, includes)]
        # This order shows, when the source compiles, that its header compiles alone
        # (cmake/check_headers.cmake).
        own, first = re.sub(r"\.c[cu]$", ".h", path), INCLUDE.search(text)
        if own != path and own in files and (first is None or first[2] != own):
            violations.append((path, 1, own, "a source includes its own header first"))
        for match in INCLUDE.finditer(text):
            reason = check_include(path, match[2], match[1] == '"', files)
            if reason:
                violations.append((path, text.count("\n", 0, match.start(2)) + 1, match[2], reason))
        for folder, names in UNNAMED.items():
            match = names.search(text) if path.startswith(folder) else None
            if match:
                violations.append((path, text.count("\n", 0, match.start()) + 1, match[0],
                                   f"{folder} must not name it"))
        opened = 0  # namespaces of flotilla, each of which encloses the names that follow
        for match in NAMESPACE.finditer(text):
            if not match[1].startswith("flotilla") and opened > len(CLOSED.findall(text, 0, match.start())):
                continue
            reason = check_namespace(path, match[1], announces=match[2] is not None)
            opened += match[1].startswith("flotilla") and match[2] is None
            if reason:
                violations.append((path, text.count("\n", 0, match.start()) + 1, match[1], reason))
    return violations


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    violations = check_tree(root)
    for path, line, include, reason in violations:
        print(f"{path}:{line}: {include}: {reason}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
