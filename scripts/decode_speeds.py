"""What scripts that compare speeds share: flotilla's decode_benchmark, and the name of the machine."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "flotilla"
BENCHMARK = ROOT / "build" / "release" / "tests" / "bench" / "decode_benchmark"


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def model():
    """The path of the model file."""
    return os.environ.get("FLOTILLA_MODEL") or str(CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def decode_speeds(program, model, batch, threads):
    """(prefill, decode, both) in tokens per second, of one round of a decode_benchmark."""
    out = subprocess.run([program, "--rounds=1", f"--threads={threads}", str(batch)], check=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "FLOTILLA_MODEL": str(model)}).stdout
    return tuple(map(float, re.search(r"prefill +([\d.]+) tok/s, decode +([\d.]+) tok/s, "
                                      r"both +([\d.]+) tok/s", out).groups()))


def machine():
    """E.g. "AMD EPYC, 2 cores"."""
    with open("/proc/cpuinfo") as info:
        name = next((line.split(":")[1].strip() for line in info if line.startswith("model name")),
                    "unknown CPU")
    return f"{name}, {os.cpu_count()} cores"
