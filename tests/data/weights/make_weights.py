#!/usr/bin/env python3
"""usage: make_weights.py TYPE... -- makes TYPE.bin beside this file: what the package gguf decodes.
       make_weights.py hashes  -- makes hashes.tsv, with a row for each TYPE.bin there is.

TYPE is a name of GGML, such as Q4_1. The file has 512 weights as whole blocks, then the same weights
in fp32. Codes are random; scales are random halves that are finite, and some are subnormal, negative
or zero.

hashes.tsv has the SHA-256 of what 1,000 blocks decode to, which are made of a counter, so that
weight_format_test.cc makes the same. A row is TYPE, where in a block the numbers are that must be
finite (KIND and OFFSET, such as h0,h2), and the hash.

Run it by hand when a format is added; it needs the packages gguf and numpy.
"""

import hashlib
import pathlib
import sys

import gguf
import numpy as np

WEIGHTS = 512
# Where a block has its fp16 scales. In F16 a block is one.
HALVES = {"F32": (), "F64": (), "BF16": (), "F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
          "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (), "NVFP4": (), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}


BLOCKS = 1000
STEP = 0x9E3779B97F4A7C15
# For each KIND the bits of 16 that are cleared, and those that are set, if all bits of `when` are set.
FINITE = {"h": (0x7C00, 0x4000, 0), "b": (0x7F80, 0x4000, 0), "d": (0, 0x7FC0, 0x3F80)}


def finite_numbers(name):
    """KIND and OFFSET of each: fp16, bf16 (or the upper half of fp32), fp64's upper 16 bits, E8M0."""
    plain = {"F16": "h0", "BF16": "b0", "F32": "b2", "F64": "d6", "MXFP4": "e0"}
    return plain.get(name) or ",".join(f"h{at}" for at in HALVES[name])


def mixed(words):
    """The finaliser of SplitMix64, of an array of uint64."""
    x = words + np.uint64(STEP)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_row(name):
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    with np.errstate(over="ignore"):
        words = mixed(np.arange((BLOCKS * size + 7) // 8, dtype=np.uint64) * np.uint64(STEP))
    blocks = words.astype("<u8").view(np.uint8)[:BLOCKS * size].reshape(BLOCKS, size).copy()
    for number in filter(None, finite_numbers(name).split(",")):
        at = int(number[1:])
        if number[0] == "e":  # beyond 252 weights may be infinite
            blocks[:, at] = np.where(blocks[:, at] > 252, blocks[:, at] - 128, blocks[:, at])
            continue
        when, clear, then = FINITE[number[0]]
        bits = blocks[:, at].astype(np.uint16) | blocks[:, at + 1].astype(np.uint16) << 8
        bits = np.where(bits & when == when, bits & ~np.uint16(clear) | then, bits).astype("<u2")
        blocks[:, at:at + 2] = bits.view(np.uint8).reshape(-1, 2)
    if name == "F64":
        weights = blocks.reshape(-1).view(np.float64).astype(np.float32)
    else:
        weights = gguf.quants.dequantize(blocks.reshape(-1), kind).astype(np.float32)
    assert np.isfinite(weights).all(), name
    digest = hashlib.sha256(weights.reshape(-1).astype("<f4").tobytes()).hexdigest()
    return f"{name}\t{finite_numbers(name)}\t{digest}\n"


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
    if name == "F64":
        numbers = random.normal(0, 1, WEIGHTS)
        blocks, weights = numbers.view(np.uint8), numbers.astype(np.float32)
    else:
        weights = gguf.quants.dequantize(blocks.reshape(-1), kind).astype(np.float32).reshape(-1)
    assert len(weights) == WEIGHTS and np.isfinite(weights).all()
    path = pathlib.Path(__file__).with_name(name + ".bin")
    path.write_bytes(blocks.tobytes() + weights.tobytes())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = pathlib.Path(__file__).parent
    for argument in sys.argv[1:]:
        if argument == "hashes":
            names = sorted(path.stem for path in folder.glob("*.bin"))
            (folder / "hashes.tsv").write_text("".join(hash_row(name) for name in names))
        else:
            make(argument)
