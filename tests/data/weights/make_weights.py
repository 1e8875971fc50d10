#!/usr/bin/env python3
"""usage: make_weights.py TYPE... -- makes TYPE.bin beside this file: what the package gguf decodes.

TYPE is a name of GGML, such as Q4_1. The file has 512 weights as whole blocks, then the same weights
in fp32. Codes are random; scales are random halves that are finite, and some are subnormal, negative
or zero. Run it by hand when a format is added; it needs the packages gguf and numpy.
"""

import pathlib
import sys

import gguf
import numpy as np

WEIGHTS = 512
# Where a block has its fp16 scales. In F16 a block is one.
HALVES = {"F32": (), "BF16": (), "F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
          "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (), "NVFP4": (), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}


def make(name):
    random = np.random.default_rng(1)
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (WEIGHTS // elements, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = random.normal(0, 0.1, len(blocks)).astype(np.float16)
        if len(halves) > 3:
            halves[:3] = [-0.25, 0, np.float16(3e-6)]
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":  # exponents whose weights are finite
        blocks[:, 0] = random.integers(0, 253, len(blocks))
        blocks[:3, 0] = [0, 1, 252]
    if name == "F32":
        blocks = random.normal(0, 1, WEIGHTS).astype(np.float32).view(np.uint8)
    if name == "BF16":
        blocks = (random.normal(0, 1, WEIGHTS).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16).view(np.uint8)
    weights = gguf.quants.dequantize(blocks.reshape(-1), kind).astype(np.float32).reshape(-1)
    assert len(weights) == WEIGHTS and np.isfinite(weights).all()
    path = pathlib.Path(__file__).with_name(name + ".bin")
    path.write_bytes(blocks.tobytes() + weights.tobytes())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        make(argument)
