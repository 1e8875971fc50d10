#!/usr/bin/env python3
"""The kernels' library uses no function of libm but those whose results IEEE 754 fixes.

usage: symbols_test.py LIBRARY
"""

import subprocess
import sys

EXACT = {"ceil", "copysign", "fabs", "floor", "fma", "fmax", "fmin", "nearbyint", "rint", "sqrt",
         "trunc"}


def symbols(*arguments):
    """What nm lists: {name without version}."""
    text = subprocess.run(["nm", *arguments], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines()]
    return {words[-1].split("@")[0] for words in lines if len(words) >= 2}


def main():
    libm = subprocess.run(["c++", "-print-file-name=libm.so.6"], capture_output=True, text=True,
                          check=True).stdout.strip()
    known = symbols("--dynamic", "--defined-only", libm)
    assert {"tanhf", "erff", "expf", "logf"} <= known, f"{libm} lacks what it has to have"
    used = symbols("--undefined-only", sys.argv[1])
    assert "memset" in used, f"{sys.argv[1]} seems to be empty"
    wrong = {name for name in used & known if name.removesuffix("f") not in EXACT}
    if wrong:
        sys.exit(f"{sys.argv[1]} calls {', '.join(sorted(wrong))} of libm")


if __name__ == "__main__":
    main()
