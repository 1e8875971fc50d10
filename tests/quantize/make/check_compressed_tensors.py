#!/usr/bin/env python3
"""Checks that compressed-tensors and transformers read what flotilla quantize makes.

It makes a small Llama and quantises it to each kind of folder: bits, groups, zeros, types of scales
and methods. The models of tests/data/tiny are quantised by rtn, for the names that architectures
have. Of each folder it asserts:

    codes     The library unpacks the codes and zeros that the bits of the file are.
    fp32      With scales in fp32 its weights have the bits of scale * (code - zero).
    bytes     It makes the tensors of the file, byte for byte, of these weights and the scales and
              zeros. After rtn it finds the codes for the weights of the model before, but for ties.
    flotilla  With --compute fp32 flotilla answers with the tokens and log-probabilities that it has
              for a folder in F32 with the library's fp32 weights.
    transformers  It loads the folder. No tensor is missing, unexpected or mismatched, and all have
              the bits of the library's weights in the type of the scales.

transformers has two ways. With dequantize=True it reads all but models some of whose experts'
matrices are quantised only, because rows of the others are no multiples of 32. By default weights
stay packed until the model runs: this does not read packed zeros, Falcon and GPTBigCode, and not
what the library writes of them either ("not packed" in the table).

The table goes to standard output, and the libraries' progress to standard error. Run it by hand
with a build; CI installs none of the packages. It takes half a minute on one core:

    python3 -m venv v
    v/bin/pip install -r tests/quantize/make/requirements-compressed-tensors.txt
    v/bin/python tests/quantize/make/check_compressed_tensors.py 2> /dev/null
"""

import argparse
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized import unpack_from_int32
from loguru import logger
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[3]
RTN = ["--method", "rtn"]
# The columns are: the type of the model, and the flags.
RUNS = [("bfloat16", [*RTN, "--bits", bits, "--group-size", group, *zeros])
        for bits in "2348" for group in ("32", "128", "0") for zeros in ([], ["--zeros"])]
RUNS += [("bfloat16", ["--method", method, "--bits", bits, "--group-size", "64", *zeros])
         for method in ("gptq", "awq") for bits in "348" for zeros in ([], ["--zeros"])]
RUNS += [(dtype, flags) for dtype in ("float16", "float32")
         for flags in ([*RTN, "--zeros"], ["--method", "gptq"])]
RUNS += [(dtype, flags) for dtype in ("bfloat16", "float16", "float32")
         for flags in ([*RTN, "--activations", "int8"], ["--method", "gptq", "--activations", "int8"],
                       ["--method", "smoothquant"])]
# Of these some matrices of experts stay as they are.
MIXED_EXPERTS = "deepseek_v2_mla", "deepseek_v3_mla", "qwen3_moe"
# The library fails to load what it writes of these, while their weights stay packed.
NOT_PACKED = "falcon_gqa", "falcon_mqa", "gpt_bigcode_mqa"
NO_MATRIX = ("gpt2",)  # its matrices are transposed
TEXT = "The quick brown fox jumps over the lazy dog, and then it counts: 1, 2, 3, 5, 8, 13. " * 40


def write_tokenizer(folder):
    """Writes a tokenizer whose tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_llama(folder, dtype):
    """Writes a Llama whose rows are multiples of 128, with random weights."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        initializer_range=0.1)
    transformers.LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    write_tokenizer(folder)


def tensors_of(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def bits_of(words, bits, count):
    """Reads integers along the last axis of words [..., n]: bits without gaps, the lowest first."""
    planes = numpy.unpackbits(
        numpy.ascontiguousarray(words).view(numpy.uint8), axis=-1, bitorder="little")
    planes = planes[..., :bits * count].reshape(*words.shape[:-1], count, bits).astype(int)
    return (planes << numpy.arange(bits)).sum(-1) - (1 << (bits - 1))


def read_codes(state, args):
    """Gives the codes and zeros of a layer, which the library unpacks to the same."""
    scales = state["weight_scale"]
    if "weight_packed" not in state:
        assert state["weight"].dtype == torch.int8 and "weight_zero_point" not in state
        return state["weight"].numpy().astype(int), numpy.zeros(scales.shape, int)
    shape = state["weight_shape"]
    codes = bits_of(state["weight_packed"].numpy(), args.num_bits, int(shape[1]))
    given = unpack_from_int32(state["weight_packed"], args.num_bits, shape)
    assert (given.numpy() == codes).all(), "codes"
    if args.symmetric:
        assert "weight_zero_point" not in state
        return codes, numpy.zeros(scales.shape, int)
    zeros = bits_of(state["weight_zero_point"].numpy().T, args.num_bits, int(shape[0])).T
    given = unpack_from_int32(state["weight_zero_point"], args.num_bits,
                              (int(shape[0]), scales.shape[1]), packed_dim=0)
    assert (given.numpy() == zeros).all(), "zeros"
    return codes, zeros


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and \
        one.flatten().view(torch.uint8).equal(other.flatten().view(torch.uint8))


def check_layer(state, scheme, compressor, before):
    """Gives the library's weights in fp32 and in the type of the scales.

    `before` are the weights that rtn has rounded, or None.
    """
    codes, zeros = read_codes(state, scheme.weights)
    scales = state["weight_scale"]
    wide = {**state, "weight_scale": scales.float()}
    exact = compressor.decompress(wide, scheme)["weight"]
    group = codes.shape[1] // scales.shape[1]
    spread = numpy.repeat(scales.float().numpy(), group, 1)
    zero = numpy.repeat(zeros, group, 1)
    weights = spread * (codes - zero).astype(numpy.float32)
    assert same_bits(exact, torch.from_numpy(weights)), "fp32"

    wide["weight_zero_point"] = torch.from_numpy(zeros).to(torch.int8)

    def compress(weights):
        return compressor.compress({**wide, "weight": weights}, scheme)

    again = compress(exact)
    for name, tensor in state.items():
        made = again[name].to(scales.dtype) if name == "weight_scale" else again[name]
        assert same_bits(made, tensor), f"bytes of {name}"
    if before is not None:
        nearest, _ = read_codes(compress(before.float()), scheme.weights)
        # The library adds the zero before it rounds, so odd zeros send ties to the other code.
        tie = (before.double().numpy() / spread % 1 == 0.5) & (zero % 2 == 1)
        assert ((nearest == codes) | tie & (abs(nearest - codes) == 1)).all(), "nearest codes"
    return exact, compressor.decompress(state, scheme)["weight"]


def write_dense(folder, like, tensors):
    """Writes the model without quantisation, and with these tensors."""
    folder.mkdir()
    config = json.loads((like / "config.json").read_text())
    del config["quantization_config"]
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(like / "tokenizer.json", folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", {"format": "pt"})


def load(folder, **options):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **options)
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    return model.eval(), wrong


def assert_loads(folder, dense, **options):
    """Asserts that transformers makes of the folder what it makes of the dense one in F32."""
    expected, wrong = load(dense, dtype=torch.float32)
    assert not wrong, wrong
    model, wrong = load(folder, **options)
    assert not wrong, wrong
    model(torch.tensor([[65, 66, 67]]))  # This unpacks what is packed.
    given = model.state_dict()
    for name, tensor in expected.state_dict().items():
        assert same_bits(given[name].float(), tensor), f"transformers' {name}"


def answer(flotilla, folder, scratch):
    body = {"model": "m", "prompt": "The fox", "max_tokens": 16, "temperature": 0,
            "logprobs": 5, "ignore_eos": True}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (scratch / "request").write_text(json.dumps(line) + "\n")
    command = [flotilla, "run", "--model", folder, "--served-model-name", "m", "--compute", "fp32",
               "--input", scratch / "request", "--output", "-", "--kv-type", "fp32",
               "--kv-blocks", "16", "--threads", "1"]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    choice, = json.loads(made.stdout)["response"]["body"]["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == 16, choice
    return choice


def check_folder(flotilla, source, dtype, flags, scratch):
    """Makes the folder and checks it. Gives the columns of the table."""
    folder = scratch / "made"
    command = [flotilla, "quantize", "--model", source, "--out", folder, "--threads", "1", *flags]
    if "rtn" not in flags:
        command += ["--calibration", scratch / "text"]
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr.strip()
    config = transformers.AutoConfig.from_pretrained(folder).quantization_config
    config = transformers.CompressedTensorsConfig(**config).quantization_config
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(scheme.format)

    before, tensors = tensors_of(source), tensors_of(folder)
    exact, rounded = {}, {}
    layers = [name.removesuffix(".weight_scale") for name in tensors if name.endswith("_scale")]
    for layer in layers:
        state = {name.removeprefix(f"{layer}."): tensors.pop(name) for name in list(tensors)
                 if name.startswith(f"{layer}.weight")}
        name = f"{layer}.weight"
        exact[name], rounded[name] = check_layer(
            state, scheme, compressor, before[name] if "rtn" in flags else None)
    weights = sum(tensor.numel() for tensor in exact.values())
    scales = str(state["weight_scale"].dtype).removeprefix("torch.")
    assert set(exact) | set(tensors) == set(before), "names"

    for name, dense in ("exact", exact), ("rounded", rounded):
        write_dense(scratch / name, folder,
                    {each: tensor.float() for each, tensor in (tensors | dense).items()})
    assert answer(flotilla, folder, scratch) == answer(flotilla, scratch / "exact", scratch), \
        "flotilla's log-probabilities"
    loads = "some experts are dense"
    if source.name not in MIXED_EXPERTS:
        loads = "equal; not packed"
        assert_loads(folder, scratch / "rounded", dtype=torch.float32,
                     quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
        if "--zeros" not in flags and source.name not in NOT_PACKED:
            loads = "equal"
            # The scales get the type of the model.
            assert_loads(folder, scratch / ("exact" if dtype == "float32" else "rounded"))
    return [scheme.format, scales, str(len(layers)), str(weights), "equal", loads]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flotilla", default=ROOT / "build/release/bin/flotilla")
    arguments = parser.parse_args()
    logger.remove()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    columns = ["model", "type", "flags", "format", "scales", "matrices", "weights",
               "codes, fp32, bytes, flotilla", "transformers"]
    print("|", " | ".join(columns), "|")
    print("|" + "---|" * len(columns))
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        top = pathlib.Path(directory)
        sources = {}
        for dtype in "bfloat16", "float16", "float32":
            sources[dtype] = top / dtype / "llama_128"
            write_llama(sources[dtype], dtype)
        runs = [(sources[dtype], dtype, flags) for dtype, flags in RUNS]
        for tiny in sorted((ROOT / "tests/data/tiny").iterdir()):
            if tiny.name not in NO_MATRIX:
                shutil.copytree(tiny, top / tiny.name)
                write_tokenizer(top / tiny.name)
                runs.append((top / tiny.name, "bfloat16", RTN))
        for number, (source, dtype, flags) in enumerate(runs):
            scratch = top / f"run{number}"
            scratch.mkdir()
            (scratch / "text").write_text(TEXT)
            try:
                row = check_folder(arguments.flotilla, source, dtype, flags, scratch)
            except (AssertionError, AttributeError, RuntimeError, ValueError) as error:
                failures += 1
                row = [f"FAILED: {error}"]
            print("|", " | ".join([source.name, dtype, " ".join(flags), *row]), "|", flush=True)
            shutil.rmtree(scratch)
    print(f"{len(runs)} folders, {failures} failures; transformers {transformers.__version__}, "
          f"compressed-tensors {importlib.metadata.version('compressed-tensors')}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
