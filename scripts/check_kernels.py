#!/usr/bin/env python3
"""usage: check_kernels.py [--update] [BUILD] -- checks the machine code of the GPU kernels.

The script disassembles the library flotilla_kernels_cuda of the folder BUILD (default:
build/release) with cuobjdump, which is on PATH or in the virtual environment
(scripts/cuobjdump_requirements.txt). It needs no GPU. For each kernel and architecture it checks
that no registers spill, that nothing lies on a stack, that registers and static shared memory stay
within kernels/cuda/resources.tsv, and which instructions the kernel has. It prints one line for
each violation, and exits 1 if there is any. The table holds for the compiler of
scripts/cuda_requirements.txt.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "kernels" / "cuda" / "resources.tsv"
LIBRARY = pathlib.Path("kernels") / "cuda" / "libflotilla_kernels_cuda.a"
ARCHITECTURES = ("sm_80", "sm_90a")
COLUMNS = ("kernel", "architecture", "registers", "shared bytes")

# What a kernel, in all its instances, is made for.
NEEDED = {
    "MatMulI16Kernel": ("IMMA", "FFMA", "PRMT"),  # exact products on the tensor cores
    "MatMulF32Kernel": ("FFMA", "BAR"),
    "SegmentKernel": ("FFMA", "SHFL", "BAR", "FMNMX"),
    "MergeKernel": ("FFMA", "FMNMX"),
    "RmsNormKernel": ("FFMA", "SHFL", "BAR"),
    "QuantizeKernel": ("SHFL", "BAR", "MUFU"),  # an exact division begins with the approximate one
    "RopeKernel": ("FFMA",),
    "ActivateKernel": ("FFMA", "MUFU"),
    "AddKernel": ("FADD",),
    "StatsKernel": ("FFMA", "SHFL", "BAR", "FMNMX"),
    "TopNKernel": ("SHFL", "BAR"),
    "ArgMaxKernel": ("SHFL", "BAR"),
    "GumbelKernel": ("FFMA", "SHFL", "BAR"),
}
# What no kernel has: memory of a thread, which is slow, and numbers of 64 bits.
FORBIDDEN = ("LDL", "STL", "DADD", "DFMA", "DMUL")

RESOURCES = re.compile(r"^ Function (\w+):\n  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", re.M)
FUNCTION = re.compile(r"^\t\tFunction : (\w+)$", re.M)
INSTRUCTION = re.compile(r"^ +/\*[0-9a-f]{4,}\*/ +(?:@!?U?P[T\d]+ +)?([A-Z][A-Z0-9_]*)", re.M)


@dataclasses.dataclass
class Kernel:
    registers: int
    shared: int
    stack: int
    local: int
    opcodes: collections.Counter = dataclasses.field(default_factory=collections.Counter)


def parse(text):
    """The kernels in the output of cuobjdump, by their mangled names."""
    kernels = {name: Kernel(int(registers), int(shared), int(stack), int(local))
               for name, registers, stack, shared, local in RESOURCES.findall(text)}
    _, *listings = FUNCTION.split(text)
    for name, listing in zip(listings[::2], listings[1::2]):
        kernels[name].opcodes.update(INSTRUCTION.findall(listing))
    return kernels


def readable(names):
    """What messages and the table call the kernels with these mangled names."""
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, check=True,
                           text=True).stdout.splitlines()
    # The result and the parameters of a function, and the namespaces of this project, say nothing.
    unsaid = r"^void |\([^()]*\)$|\b(?:flotilla|kernels|cuda|device)::|\(anonymous namespace\)::"
    return {name: re.sub(unsaid, "", line) for name, line in zip(names, lines)}


def disassemble(library, tool):
    """All kernels of the library, by (name, architecture)."""
    def read(architecture):
        return parse(subprocess.run([tool, "-res-usage", "-sass", "-arch", architecture, library],
                                    stdout=subprocess.PIPE, check=True, text=True).stdout)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = list(pool.map(read, ARCHITECTURES))
    names = readable(sorted({name for kernels in found for name in kernels}))
    return {(names[name], architecture): kernel
            for architecture, kernels in zip(ARCHITECTURES, found)
            for name, kernel in kernels.items()}


def violations(kernels, limits):
    """What is wrong with the kernels, a line each. `limits`: (registers, shared bytes) of each."""
    def rewrite(why):
        return f"{why} run scripts/check_kernels.py --update, and say in the commit why."

    found = []
    for key, kernel in sorted(kernels.items()):
        def report(what, key=key):
            found.append(f"{key[0]}, {key[1]}: {what}")

        spilled = [name for name in FORBIDDEN[:2] if kernel.opcodes[name]]
        if kernel.stack or kernel.local or spilled:
            report(f"it has {kernel.stack} bytes of stack and {kernel.local} of local memory"
                   f"{''.join(f', and uses {name}' for name in spilled)}, but it may have none. Keep "
                   "fewer values at a time, and index arrays by constants only.")
        for name in FORBIDDEN[2:]:
            if kernel.opcodes[name]:
                report(f"it uses {name}, but no kernel computes in double precision. Look for a "
                       "constant without the suffix f.")
        for name in NEEDED.get(key[0].split("<")[0], ()):
            if not kernel.opcodes[name]:
                report(f"it does not use {name}, which it is made for. See what the compiler makes "
                       "of it, or change NEEDED in scripts/check_kernels.py.")
        if key not in limits:
            report(rewrite("it has no row in kernels/cuda/resources.tsv:"))
            continue
        for value, limit, what in zip((kernel.registers, kernel.shared), limits[key],
                                      ("registers", "bytes of static shared memory")):
            if value > limit:
                report(rewrite(f"it has {value} {what}, but kernels/cuda/resources.tsv allows {limit}. "
                               "Make it smaller, or"))
    for key in sorted(limits.keys() - kernels.keys()):
        found.append(f"{key[0]}, {key[1]}: " + rewrite("it has a row in kernels/cuda/resources.tsv, but "
                                                       "is not in the library:"))
    present = {name.split("<")[0] for name, _ in kernels}
    for name in sorted(NEEDED.keys() - present):
        found.append(f"{name}: it is in NEEDED of scripts/check_kernels.py, but not in the library. "
                     "Correct its name there.")
    return found


def read_table(text):
    rows = (line.split("\t") for line in text.splitlines()[1:])
    return {(name, architecture): (int(registers), int(shared))
            for name, architecture, registers, shared in rows}


def write_table(kernels):
    rows = [COLUMNS] + [(*key, str(kernel.registers), str(kernel.shared))
                        for key, kernel in sorted(kernels.items())]
    return "".join("\t".join(row) + "\n" for row in rows)


def find_cuobjdump():
    places = (os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin",
              *map(str, ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/bin")))
    return shutil.which("cuobjdump", path=os.pathsep.join(places))


def main():
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the table anew")
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    library, tool = args.build / LIBRARY, find_cuobjdump()
    if not library.is_file():
        sys.exit(f"error: {library} does not exist. Build the target flotilla_kernels_cuda first.")
    if tool is None:
        sys.exit("error: there is no cuobjdump on PATH, in /usr/local/cuda/bin or in .venv. Install "
                 "scripts/cuobjdump_requirements.txt in .venv.")
    kernels = disassemble(library, tool)
    if args.update:
        TABLE.write_text(write_table(kernels), encoding="utf-8")
    found = violations(kernels, read_table(TABLE.read_text(encoding="utf-8")))
    print("".join(line + "\n" for line in found), end="")
    if not found:
        print(f"{len(kernels)} kernels checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
