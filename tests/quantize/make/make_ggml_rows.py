#!/usr/bin/env python3
"""usage: make_ggml_rows.py             -- makes tests/data/ggml_rows.
       make_ggml_rows.py IN.gguf OUT.gguf -- checks a file that flotilla quantize has made of another.

tests/data/ggml_rows has weights.bin, 64 blocks of 32 weights in fp32, and for each TYPE below
TYPE.bin, what the package gguf makes of them.

The check reads both files with gguf.GGUFReader. It wants the same metadata but for
general.file_type and general.quantization_version, the same tensors, the bytes of gguf in tensors
whose type is below, and small errors in the others.

Run it by hand; it needs the packages gguf (0.19.0) and numpy.
"""

import pathlib
import sys

import gguf
import numpy as np

TYPES = "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"
MOST_ERROR = {"Q4_K": 0.01, "Q6_K": 0.001, "F16": 1e-6}  # relative, squared
SET = "general.file_type", "general.quantization_version", "GGUF.kv_count"


def weights():
    """Blocks as models have them, and blocks that are hard to encode."""
    random = np.random.default_rng(1)
    blocks = random.normal(0, 1, (64, 32)) * np.exp(random.normal(-3, 2, (64, 1)))
    blocks[0] = 0
    blocks[1] = 0.3
    blocks[2] = -0.7
    blocks[3, :] = np.abs(blocks[3])
    blocks[4, :] = -np.abs(blocks[4])
    blocks[5, 3], blocks[5, 9] = 3, -3  # which of two extremes
    blocks[6, 3], blocks[6, 9] = -3, 3
    blocks[7] = np.arange(32) - 16  # ties
    blocks[8] = (np.arange(32) - 15) / 2
    blocks[9] = 8 * np.sign(blocks[9])
    blocks[10] *= 1e-6  # scales that fp16 has few bits for, or none
    blocks[11] *= 1e-30
    blocks[12] = 0
    blocks[12, 31] = 1
    blocks[13] = random.uniform(-60000, 60000, 32)
    blocks[14] = 127 - np.arange(32) * 8.5
    blocks[15, 0] = 1000
    return blocks.astype(np.float32)


def encoded(values, name):
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])


def make():
    folder = pathlib.Path(__file__).parents[2] / "data/ggml_rows"
    blocks = weights()
    (folder / "weights.bin").write_bytes(blocks.astype("<f4").tobytes())
    for name in TYPES:
        (folder / f"{name}.bin").write_bytes(encoded(blocks, name).tobytes())


def floats(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)


def check(before, after):
    before, after = gguf.GGUFReader(before), gguf.GGUFReader(after)
    keys = [key for key in before.fields if key not in SET]
    assert keys == [key for key in after.fields if key not in SET], "keys"
    for key in keys:
        one, other = before.fields[key], after.fields[key]
        assert one.types == other.types, key
        assert [part.tobytes() for part in one.parts] == [part.tobytes() for part in other.parts] or \
            key == "GGUF.tensor_count", key
    assert after.fields[SET[1]].contents() == 2
    print("file type", after.fields[SET[0]].contents(), "with", len(keys), "keys")
    assert [t.name for t in before.tensors] == [t.name for t in after.tensors]
    counts = {}
    for one, other in zip(before.tensors, after.tensors):
        name = other.tensor_type.name
        assert list(one.shape) == list(other.shape), one.name
        if one.tensor_type == other.tensor_type:
            assert one.data.tobytes() == other.data.tobytes(), one.name
            name = "as it was"
        elif name in TYPES:
            assert encoded(floats(one), name).tobytes() == other.data.tobytes(), one.name
        else:
            values = floats(one).astype(np.float64)
            error = np.sum((floats(other) - values) ** 2) / np.sum(values ** 2)
            assert error < MOST_ERROR[name], (one.name, error)
        counts[name] = counts.get(name, 0) + 1
    print("tensors", counts)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        make()
    elif len(sys.argv) == 3:
        check(*sys.argv[1:])
    else:
        sys.exit(__doc__)
