#!/usr/bin/env python3
"""Makes tests/data/quantised: single linear layers as published quantised checkpoints store them.

A case is one file, NAME.safetensors, with the tensors of a layer called `layer`, and one object of
cases.json:

    name, quantization_config    The configuration is what config.json says of such a checkpoint.
    rows, inputs                 The layer has `rows` outputs (N) and `inputs` inputs (K).
    weights_sha256               This is over the fp32 weights [N, K].
    codes_sha256                 This is over int16 [N, K], each integer code minus its zero point.
    scales_sha256                This is over the fp32 scales, an array of scales_shape.
    source                       This names what wrote the tensors.

All arrays are row-major and little-endian. A weight is float32(scale) * float32(code - zero), or
float32(scale) * float32(table value), and is rounded once. The codes, zero points and scales are
those that the library gives back from what it wrote. Where a library also gives weights back, the
script asserts that ours are within one unit in the last place of them, in their type. SpQR adds
outliers, and its codes are without zero points, which are no integers.

A scale is per row and group of inputs, except that fp8 blocks have a grid of scales, that tensors
with one scale have one, and that bitsandbytes has a scale per block of the flattened matrix. NVFP4
has fp32(scale) / fp32(global scale). Of FP4's two zeros both are 0. A bitsandbytes scale of int8 is fp32(SCB / 127).

Each family of cases has an environment of its own, and its cases are merged into cases.json:

    python3 -m venv v && v/bin/pip install -r requirements.txt
    v/bin/pip install --no-deps -r requirements-gptq.txt
    v/bin/python make_quantised.py gptq awq fp8

Each requirements file says which families it is for.
"""

import copy
import hashlib
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import tempfile
import zlib

import numpy
import safetensors.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data/quantised"
PACKER = "numpy packer of this script"
CASES = []


def random(name):
    return numpy.random.default_rng(zlib.crc32(name.encode()))


def sha256(array, kind):
    return hashlib.sha256(numpy.ascontiguousarray(array, kind).tobytes()).hexdigest()


def ordinals(tensor):
    """Gives integers whose differences count the floats between two values of a tensor's type."""
    kind = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    bits = tensor.contiguous().view(kind).to(torch.int64)
    return torch.where(bits < 0, -(bits & torch.iinfo(kind).max), bits)


def check(weights, given):
    """Asserts that our fp32 weights round to what a library gives, within one unit of its type."""
    ours = torch.from_numpy(numpy.ascontiguousarray(weights)).to(given.dtype)
    assert ours.shape == given.shape, (ours.shape, given.shape)
    apart = (ordinals(ours) - ordinals(given)).abs().max().item()
    assert apart <= 1, f"{apart} units in the last place"


def case(name, source, config, tensors, weights, codes=None, scales=None):
    """Writes the file of a case and adds it to those that cases.json will have."""
    assert weights.dtype == numpy.float32 and numpy.isfinite(weights).all()
    entry = {
        "name": name, "quantization_config": config,
        "rows": weights.shape[0], "inputs": weights.shape[1],
        "weights_sha256": sha256(weights, "<f4"),
    }
    if codes is not None:
        assert codes.shape == weights.shape
        entry["codes_sha256"] = sha256(codes, "<i2")
    if scales is not None:
        assert scales.dtype == numpy.float32
        entry["scales_sha256"] = sha256(scales, "<f4")
        entry["scales_shape"] = list(scales.shape)
    entry["source"] = source
    tensors = {f"layer.{key}": value.detach().contiguous() for key, value in tensors.items()}
    DATA.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, DATA / f"{name}.safetensors", {"format": "pt"})
    CASES.append(entry)
    shapes = ", ".join(f"{key[6:]} {str(value.dtype)[6:]} {list(value.shape)}"
                       for key, value in sorted(tensors.items()))
    print(f"{name}: {shapes}")


def pack(values, bits):
    """Packs values along the last axis into int32 words, low bits first, without unused bits."""
    planes = (values[..., None] >> numpy.arange(bits)) & 1
    planes = planes.reshape(*values.shape[:-1], -1).astype(numpy.uint8)
    return torch.from_numpy(numpy.packbits(planes, axis=-1, bitorder="little").view("<i4").copy())


# ---- GPTQ ---------------------------------------------------------------------------------------

# The columns are: name, bits, rows, inputs, group size, symmetric, and what else is particular.
GPTQ = [
    ("4bit_sym_128", 4, 256, 1152, 128, True, {}),
    ("4bit_sym_32_no_g_idx", 4, 64, 128, 32, True, {"no_g_idx": True}),
    # The zero points of this case include 16, which is stored as 15. Nothing is carried or masked.
    ("4bit_asym_32", 4, 64, 96, 32, False, {"zeros": (1, 16)}),
    ("4bit_asym_32_v2", 4, 64, 128, 32, False, {"zeros": (0, 15), "format": "gptq_v2"}),
    ("4bit_sym_64_bf16", 4, 64, 128, 64, True, {"dtype": torch.bfloat16, "format": "gptq"}),
    ("8bit_sym_32", 8, 64, 128, 32, True, {}),
    ("8bit_asym_32", 8, 64, 96, 32, False, {}),
    ("3bit_sym_32", 3, 64, 96, 32, True, {}),
    ("3bit_asym_32", 3, 96, 128, 32, False, {}),
    ("2bit_asym_32", 2, 64, 128, 32, False, {}),
    ("4bit_sym_column", 4, 64, 160, -1, True, {}),
    ("4bit_sym_64_short", 4, 64, 96, 64, True, {}),
    ("4bit_asym_32_desc_act", 4, 96, 256, 32, False, {"desc_act": True}),
    # Groups that were made before the columns were sorted are of neighbours, as without an order.
    ("4bit_sym_32_static", 4, 64, 256, 32, True, {"desc_act": True, "static": True}),
]


def gptq_module():
    """Loads auto-gptq's layer by its file, since its package asks for more than the layer needs."""
    folder = importlib.util.find_spec("auto_gptq").submodule_search_locations[0]
    path = pathlib.Path(folder) / "nn_modules/qlinear/qlinear_cuda.py"
    spec = importlib.util.spec_from_file_location("qlinear_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gptq():
    """Packs with auto-gptq's own layer and asserts that the packer of this script does the same.

    What auto-gptq cannot write is the numpy packer's: gptq_v2 stores zero points that are not
    lessened by one. There auto-gptq packs zero points that are greater by one.
    """
    library = gptq_module()
    version = "auto-gptq " + importlib.metadata.version("auto-gptq")
    for short, bits, rows, inputs, group, symmetric, options in GPTQ:
        name = "gptq_" + short
        draw = random(name)
        size = inputs if group == -1 else group
        groups = -(-inputs // size)
        dtype = options.get("dtype", torch.float16)
        second = options.get("format") == "gptq_v2"

        codes = draw.integers(0, 1 << bits, (rows, inputs))
        low, high = options.get("zeros", (1, (1 << bits) - 1))
        zeros = draw.integers(low, high + 1, (rows, groups))
        if symmetric:
            zeros[:] = 1 << (bits - 1)
        else:
            zeros.flat[:2] = low, high
        scales = torch.from_numpy(draw.uniform(0.001, 0.02, (rows, groups))).to(dtype)
        wide = scales.float().numpy()
        g_idx = numpy.arange(inputs) // size
        if options.get("desc_act") and not options.get("static"):
            g_idx = g_idx[draw.permutation(inputs)]
            assert (numpy.diff(g_idx) < 0).any()

        difference = codes - zeros[:, g_idx]
        weights = wide[:, g_idx] * difference.astype(numpy.float32)
        stored = zeros if second else zeros - 1
        tensors = {
            "qweight": pack(codes, bits).T, "qzeros": pack(stored.T, bits),
            "scales": scales.T, "g_idx": torch.from_numpy(g_idx.astype(numpy.int32)),
        }

        layer = library.QuantLinear(bits, group, inputs, rows, False, weight_dtype=dtype)
        linear = torch.nn.Linear(inputs, rows, bias=False, dtype=dtype)
        linear.weight.data = torch.from_numpy(weights).to(dtype)
        packed_zeros = torch.from_numpy((stored + 1).astype(numpy.float32))
        # auto-gptq finds the codes from these weights, and lessens the zero points by one itself.
        linear.weight.data += (scales.float() * (zeros - stored - 1))[:, g_idx].to(dtype)
        layer.pack(linear, scales.float(), packed_zeros, tensors["g_idx"])
        written = layer.state_dict()
        assert written.keys() == tensors.keys()
        for key, value in written.items():
            assert value.dtype == tensors[key].dtype and torch.equal(value, tensors[key]), key
        if not second:
            check(weights, layer(torch.eye(inputs, dtype=dtype)).detach().T)

        if options.get("no_g_idx"):
            del tensors["g_idx"]
        config = {
            "bits": bits, "group_size": group, "damp_percent": 0.01,
            "desc_act": options.get("desc_act", False), "sym": symmetric,
            "static_groups": options.get("static", False), "true_sequential": True,
            "model_name_or_path": None, "model_file_base_name": "model", "quant_method": "gptq",
        }
        if "format" in options:
            config["checkpoint_format"] = options["format"]
        case(name, PACKER if second or options.get("no_g_idx") else version, config, tensors,
             weights, difference, wide)


# ---- AWQ ----------------------------------------------------------------------------------------

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # Nibble n of a word has channel AWQ_ORDER[n] of its eight.
AWQ_NIBBLE = (0, 4, 1, 5, 2, 6, 3, 7)  # Channel k of eight is in nibble AWQ_NIBBLE[k].


def awq():
    """Packs as AutoAWQ's WQLinear_GEMM does."""
    for group, rows, inputs in ((128, 256, 1152), (64, 64, 192), (32, 96, 96)):
        name = f"awq_gemm_{group}"
        draw = random(name)
        codes = draw.integers(0, 16, (rows, inputs))
        zeros = draw.integers(0, 16, (rows, inputs // group))
        scales = draw.uniform(0.001, 0.02, zeros.shape).astype(numpy.float16)
        scales[0, 0] = 2.0**-23  # This is a subnormal number of fp16.
        wide = scales.astype(numpy.float32)
        difference = codes - zeros.repeat(group, 1)
        weights = wide.repeat(group, 1) * difference.astype(numpy.float32)

        def words(values):
            """Gives the words of [rows, n] values: n rows of rows / 8 words."""
            eights = values.T.reshape(values.shape[1], -1, 8)
            packed = pack(eights[:, :, AWQ_ORDER].reshape(values.shape[1], -1), 4)
            for k, nibble in enumerate(AWQ_NIBBLE):
                assert (packed.numpy() >> 4 * nibble & 15 == eights[:, :, k]).all()
            return packed

        config = {"quant_method": "awq", "zero_point": True, "group_size": group, "bits": 4,
                  "version": "gemm", "modules_to_not_convert": None}
        case(name, PACKER, config,
             {"qweight": words(codes), "qzeros": words(zeros),
              "scales": torch.from_numpy(scales).T}, weights, difference, wide)


# ---- FP8 ----------------------------------------------------------------------------------------


def e4m3_values():
    """Gives the value of each byte. The exponent's bias is 7, and 0x7F and 0xFF are no numbers."""
    byte = numpy.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values = numpy.where(byte > 127, -size, size).astype(numpy.float32)
    values[[127, 255]] = numpy.nan
    torches = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert numpy.array_equal(values, torches, equal_nan=True)
    assert (numpy.signbit(values) == (byte > 127))[~numpy.isnan(values)].all()
    return values


def e4m3_bytes(draw, rows, inputs):
    """Gives bytes that are numbers. Each of the 254 occurs, if there are so many."""
    finite = numpy.delete(numpy.arange(256, dtype=numpy.uint8), [127, 255])
    data = numpy.resize(finite, rows * inputs)
    return draw.permutation(data).reshape(rows, inputs)


def fp8():
    """Writes what DeepSeek, Qwen, AutoFP8 and transformers publish as quant_method fp8."""
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    values = e4m3_values()
    # The columns are: name, rows, inputs, the type of the scales, and the configuration.
    dynamic = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
               "weight_block_size": [128, 128]}
    blocks = [
        ("block", 200, 1100, torch.float32, dynamic),
        ("block_not_converted", 96, 144, torch.float32,
         {**dynamic, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}),
        # DeepSeek-V3.1 says ue8m0 too, and stores powers of two in F32.
        ("block_ue8m0_in_f32", 136, 160, torch.float32, {**dynamic, "scale_fmt": "ue8m0"}),
        ("block_ue8m0", 160, 288, torch.float8_e8m0fnu, {**dynamic, "scale_fmt": "ue8m0"}),
    ]
    for short, rows, inputs, kind, config in blocks:
        name = "fp8_" + short
        draw = random(name)
        data = e4m3_bytes(draw, rows, inputs)
        grid = (-(-rows // 128), -(-inputs // 128))
        scales = torch.from_numpy(draw.uniform(1e-5, 1e-3, grid).astype(numpy.float32))
        if "scale_fmt" in config:
            scales = torch.from_numpy(draw.integers(110, 121, grid).astype(numpy.uint8))
            scales = scales.view(torch.float8_e8m0fnu).to(kind)
        wide = scales.float().numpy()
        spread = wide.repeat(128, 0).repeat(128, 1)[:rows, :inputs]
        weights = spread * values[data]
        weight = torch.from_numpy(data).view(torch.float8_e4m3fn)
        check(weights, _dequantize_fp8_weight(weight, scales, [128, 128], torch.float32))
        case(name, PACKER, config, {"weight": weight, "weight_scale_inv": scales}, weights,
             scales=wide)

    tensors = [
        ("tensor_static", "weight_scale", "input_scale",
         {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"}),
        ("tensor_dynamic", "weight_scale", None,
         {"activation_scheme": "dynamic", "ignored_layers": ["lm_head"], "quant_method": "fp8"}),
        # transformers itself names the tensors so.
        ("tensor_scale_inv", "weight_scale_inv", "activation_scale",
         {"activation_scheme": "static", "dequantize": False, "modules_to_not_convert": ["lm_head"],
          "quant_method": "fp8", "weight_block_size": None}),
    ]
    for short, scale_name, input_name, config in tensors:
        name = "fp8_" + short
        draw = random(name)
        data = e4m3_bytes(draw, 72, 104)
        scale = numpy.float32(draw.uniform(1e-5, 1e-3))
        weights = scale * values[data]
        written = {"weight": torch.from_numpy(data).view(torch.float8_e4m3fn),
                   scale_name: torch.tensor(scale)}
        if input_name:
            written[input_name] = torch.tensor(numpy.float32(draw.uniform(0.01, 0.1)))
        check(weights, _dequantize_fp8_weight(
            written["weight"], written[scale_name], None, torch.float32))
        case(name, PACKER, config, written, weights, scales=scale.reshape(1))


# ---- compressed-tensors -------------------------------------------------------------------------

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# The columns are: name, rows, inputs, the type of the model, a preset of the library, what the
# weights' arguments have instead, and what else is particular.
COMPRESSED = [
    ("w4_128", 256, 1152, BF16, "W4A16", {}, {}),
    ("w4_32", 64, 96, BF16, "W4A16", {"group_size": 32}, {}),
    ("w4_32_fp16", 64, 96, FP16, "W4A16", {"group_size": 32}, {}),
    # The words of zero points have eight rows, and the last word is not full.
    ("w4_asym_32", 68, 128, BF16, "W4A16_ASYM", {"group_size": 32}, {}),
    ("w4_channel", 64, 100, BF16, "W4A16", {"strategy": "channel", "group_size": None}, {}),
    ("w4_asym_channel", 70, 100, FP16, "W4A16_ASYM",
     {"strategy": "channel", "group_size": None}, {}),
    # Codes of 3 bits lie across words.
    ("w3_32", 64, 96, BF16, "W4A16", {"group_size": 32, "num_bits": 3}, {}),
    ("w3_asym_32", 68, 128, BF16, "W4A16_ASYM", {"group_size": 32, "num_bits": 3}, {}),
    ("w8_32", 64, 96, BF16, "W8A16", {"group_size": 32}, {}),
    ("w8_asym_32", 66, 96, BF16, "W8A16", {"group_size": 32, "symmetric": False}, {}),
    ("w8_channel", 64, 98, BF16, "W8A16", {"strategy": "channel", "group_size": None}, {}),
    ("int8_channel", 72, 104, BF16, "W8A8", {}, {}),
    ("int8_channel_fp32", 72, 104, FP32, "W8A8", {}, {}),
    ("int8_asym_channel", 72, 104, BF16, "W8A8", {"symmetric": False}, {}),
    ("int8_tensor_static", 72, 104, BF16, "W8A8", {"strategy": "tensor"}, {"static": True}),
    ("fp8_tensor_static", 72, 104, BF16, "FP8", {}, {}),
    ("fp8_channel", 72, 104, BF16, "FP8_DYNAMIC", {}, {}),
    ("fp8_channel_fp32", 72, 104, FP32, "FP8_DYNAMIC", {}, {}),
    ("fp8_channel_naive", 72, 104, FP16, "FP8_DYNAMIC", {}, {"weights_only": True}),
    ("fp8_block", 160, 288, BF16, "FP8_BLOCK", {}, {}),
    ("nvfp4", 64, 144, BF16, "NVFP4", {}, {}),
    ("nvfp4_weights_only", 72, 96, BF16, "NVFP4A16", {}, {}),
    ("mxfp4", 64, 160, BF16, "MXFP4", {}, {}),
    ("mxfp4_weights_only", 72, 96, BF16, "MXFP4A16", {}, {}),
]
# compressed-tensors 0.13 writes orders of groups, which 0.20 refuses.
COMPRESSED_ACTORDER = [
    ("w4_32", 64, 256, BF16, "W4A16", {"group_size": 32, "actorder": "group"},
     {"format": "pack-quantized"}),
    ("w4_asym_32", 64, 96, FP16, "W4A16_ASYM", {"group_size": 32, "actorder": "group"},
     {"format": "pack-quantized"}),
]


def compressed_range(weight, args, g_idx):
    """Gives the least and the greatest weight of each tensor, row, group or block."""
    if args.strategy == "tensor":
        parts, axes = weight.reshape(1, -1), -1
    elif args.strategy == "channel":
        parts, axes = weight[:, None], -1
    elif args.strategy == "block":
        height, width = args.block_structure
        rows, inputs = weight.shape
        padded = torch.nn.functional.pad(weight, (0, -inputs % width, 0, -rows % height))
        parts, axes = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height)), (1, 3)
    else:
        order = torch.arange(weight.shape[1])
        if g_idx is not None:
            order = torch.argsort(g_idx, stable=True)
        parts, axes = weight[:, order].unflatten(-1, (-1, args.group_size)), -1
    return parts.amin(axes), parts.amax(axes)


def compressed_decode(state, args):
    """Gives codes or values [N, K], zero points or None, and scales, of compressed tensors."""
    if args.type == "int":
        if "weight_packed" in state:
            try:
                from compressed_tensors.compressors.pack_quantized import unpack_from_int32
            except ImportError:
                from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
                    unpack_from_int32)
            shape = torch.Size(state["weight_shape"])
            codes = unpack_from_int32(state["weight_packed"], args.num_bits, shape)
        else:
            codes = state["weight"]
        scales = state["weight_scale"]
        zeros = torch.zeros(scales.shape)
        if "weight_zero_point" in state:
            zeros = state["weight_zero_point"]
            if "weight_packed" in state:
                zeros = unpack_from_int32(
                    zeros, args.num_bits, (shape[0], scales.shape[-1]), packed_dim=0)
        return codes.int().numpy(), zeros.int().numpy(), scales.float().numpy()
    if args.num_bits == 8:
        return state["weight"].float().numpy(), None, state["weight_scale"].float().numpy()
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    packed = state["weight_packed"]
    values = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1]).float().numpy()
    values = values + numpy.float32(0)  # The zero with a sign becomes the other one.
    if "weight_global_scale" in state:
        return values, None, (state["weight_scale"].float() / state["weight_global_scale"]).numpy()
    assert state["weight_scale"].dtype == torch.uint8
    exponents = state["weight_scale"].numpy().astype(numpy.int32) - 127
    return values, None, numpy.ldexp(numpy.float32(1), exponents)


def compressed(prefix, rows_of_cases):
    """Quantises, compresses and saves with the library, as llm-compressor does."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs, QuantizationConfig, QuantizationScheme, apply_quantization_config)
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    version = "compressed-tensors " + importlib.metadata.version("compressed-tensors")
    for short, rows, inputs, dtype, preset, changes, options in rows_of_cases:
        name = prefix + short
        draw = random(name)
        scheme = preset_name_to_scheme(preset, ["Linear"])
        args = QuantizationArgs(**{**scheme.weights.model_dump(), **changes})
        activations = scheme.input_activations
        if options.get("static"):
            activations = QuantizationArgs(
                num_bits=8, type="int", strategy="tensor", symmetric=False, dynamic=False)
        if options.get("weights_only"):
            activations = None
        config = QuantizationConfig(
            config_groups={"group_0": QuantizationScheme(
                targets=["Linear"], weights=args, input_activations=activations)},
            ignore=["lm_head"])

        model = torch.nn.Module()
        model.layer = torch.nn.Linear(inputs, rows, bias=False, dtype=dtype)
        model.lm_head = torch.nn.Linear(8, 8, bias=False, dtype=dtype)
        layer = model.layer
        layer.weight.data = torch.from_numpy(draw.normal(0, 0.02, (rows, inputs))).to(dtype)
        apply_quantization_config(model, config)

        g_idx = None
        if changes.get("actorder") == "group":
            g_idx = torch.from_numpy(draw.permutation(inputs) // args.group_size).int()
            layer.weight_g_idx.data.copy_(g_idx)
        least, greatest = compressed_range(layer.weight.data, args, g_idx)
        global_scale = None
        if args.strategy == "tensor_group":
            global_scale = generate_gparam(least.amin(), greatest.amax())
            layer.weight_global_scale.data.copy_(global_scale)
        scales, zeros = calculate_qparams(least, greatest, args, global_scale=global_scale)
        assert layer.weight_scale.shape == scales.shape, (layer.weight_scale.shape, scales.shape)
        layer.weight_scale.data.copy_(scales)
        layer.weight_zero_point.data.copy_(zeros)
        if hasattr(layer, "input_scale"):
            layer.input_scale.data.fill_(0.03125)
        if options.get("static"):
            layer.input_zero_point.data.fill_(-7)
        if hasattr(layer, "input_global_scale"):
            layer.input_global_scale.data.fill_(512)

        compressor = ModelCompressor.from_pretrained_model(
            model, quantization_format=options.get("format"))
        compressor.compress_model(model)
        tensors = {key: value.clone() for key, value in layer.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text("{}")
            compressor.update_config(folder)
            written = json.loads((pathlib.Path(folder) / "config.json").read_text())
        compressor.decompress_model(model)

        values, zeros, wide = compressed_decode(tensors, args)
        if args.strategy in ("group", "tensor_group"):
            groups = g_idx.numpy() if g_idx is not None else numpy.arange(inputs) // args.group_size
        elif args.strategy == "block":
            groups = numpy.arange(inputs) // args.block_structure[1]
        else:
            groups = numpy.zeros(inputs, int)
        per_row = wide.reshape(1, 1) if args.strategy == "tensor" else wide
        if args.strategy == "block":
            per_row = wide.repeat(args.block_structure[0], 0)
        spread = numpy.broadcast_to(per_row, (max(rows, len(per_row)), per_row.shape[1]))
        spread = spread[:rows, groups]
        difference = None
        if zeros is not None:
            zeros = zeros.reshape(1, 1) if args.strategy == "tensor" else zeros
            difference = values - numpy.broadcast_to(zeros, (rows, zeros.shape[1]))[:, groups]
            assert difference.min() < 0 < difference.max()
            values = difference.astype(numpy.float32)
        weights = spread * values
        check(weights, layer.weight.data)
        case(name, version, written["quantization_config"], tensors, weights, difference, wide)


# ---- bitsandbytes -------------------------------------------------------------------------------

# The columns are: name, rows, inputs, the type of the model, the map, whether absmax is quantised.
BITSANDBYTES = [
    ("nf4", 256, 1152, BF16, "nf4", False),
    ("nf4_double", 192, 384, BF16, "nf4", True),
    ("nf4_double_fp16", 64, 96, FP16, "nf4", True),
    ("nf4_straddling", 72, 96, FP16, "nf4", False),
    # The last block has 12 weights.
    ("nf4_short_block", 70, 98, FP32, "nf4", False),
    ("fp4", 64, 160, BF16, "fp4", False),
]


def bitsandbytes():
    """Saves the state of the library's own layers, as transformers does."""
    import bitsandbytes as library
    from transformers import BitsAndBytesConfig

    version = "bitsandbytes " + importlib.metadata.version("bitsandbytes")
    for short, rows, inputs, dtype, kind, double in BITSANDBYTES:
        name = "bitsandbytes_" + short
        weight = torch.from_numpy(random(name).normal(0, 0.02, (rows, inputs))).to(dtype)
        layer = library.nn.Linear4bit(
            inputs, rows, bias=False, compute_dtype=dtype, compress_statistics=double,
            quant_type=kind)
        layer.weight = library.nn.Params4bit(
            weight, requires_grad=False, compress_statistics=double, quant_type=kind, module=layer)
        layer.to("cpu")
        tensors = layer.state_dict()
        packed = tensors["weight"].numpy().reshape(-1)
        codes = numpy.stack([packed >> 4, packed & 15], -1).reshape(-1)[:rows * inputs]
        stored = json.loads(tensors[f"weight.quant_state.bitsandbytes__{kind}"].numpy().tobytes())
        scales = tensors["weight.absmax"].numpy()
        if double:
            nested = tensors["weight.nested_quant_map"].numpy()[scales]
            spread = tensors["weight.nested_absmax"].numpy().repeat(stored["nested_blocksize"])
            scales = nested * spread[:len(scales)] + numpy.float32(stored["nested_offset"])
            state = layer.weight.quant_state
            theirs = library.functional.dequantize_blockwise(state.absmax, state.state2)
            assert numpy.array_equal(scales, (theirs + state.offset).numpy())
        values = tensors["weight.quant_map"].numpy()[codes]
        weights = scales.repeat(stored["blocksize"])[:len(values)] * values
        weights = weights.reshape(rows, inputs)
        # On a CPU the library starts a block with each row, and gives wrong weights where rows are
        # no multiples of blocks. It is right about one long row.
        state = copy.copy(layer.weight.quant_state)
        state.shape = torch.Size([1, rows * inputs])
        check(weights.reshape(1, -1), library.functional.dequantize_4bit(layer.weight.data, state))
        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_compute_dtype=dtype, bnb_4bit_quant_type=kind,
            bnb_4bit_use_double_quant=double).to_dict()
        case(name, version, config, tensors, weights, scales=scales)

    name, rows, inputs = "bitsandbytes_int8", 72, 104
    weight = torch.from_numpy(random(name).normal(0, 0.02, (rows, inputs))).to(FP16)
    layer = library.nn.Linear8bitLt(
        inputs, rows, bias=False, has_fp16_weights=False, threshold=6.0)
    layer.weight = library.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    layer.to("cpu")
    tensors = layer.state_dict()
    codes = tensors["weight"].int().numpy()
    scales = (tensors["SCB"].numpy() / numpy.float32(127))[:, None]
    weights = scales * codes.astype(numpy.float32)
    # The library rounds more often in fp32. transformers rounds that to the type of the model.
    check(weights, library.functional.int8_vectorwise_dequant(
        tensors["weight"], tensors["SCB"]).to(FP16))
    config = BitsAndBytesConfig(load_in_8bit=True).to_dict()
    case(name, version, config, tensors, weights, codes, scales)


# Each family has the prefix of the names of its cases.
# ---- SpQR ---------------------------------------------------------------------------------------

# The columns are: name, rows, inputs, whether inputs have an order, and the share of outliers.
SPQR = [
    ("64x96", 64, 96, False, 0.01),
    # The last tile of 16 x 16 has 8 rows. spqr-quant leaves half of what it has in common zero.
    ("40x288", 40, 288, False, 0.03),
    ("64x320_order", 64, 320, True, 0.01),
    ("32x80", 32, 80, False, 0.02),
    ("16x64_no_outliers", 16, 64, False, 0),
]


def spqr():
    """Packs as spqr-quant 0.2 does (tensor_compress_interleaved), which needs a GPU to be run.

    A scale is step * (code - zero) in fp32, and so is a zero. A weight is then
    scale * (code - zero) + outlier in fp32, rounded after each step.
    """
    single = numpy.float32
    for short, rows, inputs, ordered, share in SPQR:
        name = "spqr_" + short
        draw = random(name)
        tall, wide = -(-rows // 16), inputs // 16
        codes = draw.integers(0, 8, (rows, inputs))
        firsts = draw.integers(0, 8, (2, rows, wide))  # These are the codes of scales and zeros.
        steps = draw.uniform([[[0.001]], [[-0.5]]], [[[0.004]], [[0.5]]], (2, tall, wide))
        middles = draw.uniform([[[-8]], [[-4]]], [[[0]], [[8]]], (2, tall, wide))
        numbers = numpy.stack([*steps, *middles], -1).astype(numpy.float16)  # [tall, wide, 4]
        whole = numbers.view(numpy.uint64)[..., 0]

        words = numpy.zeros((tall, wide, 16), numpy.uint64)
        seen = numpy.zeros((tall, wide), numpy.uint64)
        for row in range(rows):
            tile, place = divmod(row, 16)
            word = (firsts[0, row] | firsts[1, row] << 3).astype(numpy.uint64)
            for j in range(16):
                word |= codes[row, j::16].astype(numpy.uint64) << numpy.uint64(6 + 3 * j)
            shift = numpy.uint64(place // 2 * 8)
            byte = whole[tile] >> shift & numpy.uint64(255)
            words[tile, :, place] = word | byte << numpy.uint64(54)
            seen[tile] |= byte << shift
        numbers = seen[..., None].view(numpy.float16).astype(single).repeat(16, 0)[:rows]
        scales = numbers[..., 0] * (firsts[0].astype(single) - numbers[..., 2])
        zeros = numbers[..., 1] * (firsts[1].astype(single) - numbers[..., 3])
        dense = scales.repeat(16, 1) * (codes.astype(single) - zeros.repeat(16, 1))

        outliers = numpy.zeros((rows, inputs), numpy.float16)
        places = draw.permutation(rows * inputs)[:round(share * rows * inputs)]
        outliers.flat[places] = draw.uniform(-0.5, 0.5, places.size)
        at = numpy.nonzero(outliers)
        col_vals = outliers[at].view(numpy.uint16).astype(numpy.uint32) << 16
        col_vals = (col_vals | at[1].astype(numpy.uint32)).view(numpy.int32)
        offsets = numpy.searchsorted(at[0], numpy.arange(rows + 1)).astype(numpy.int32)
        # Without an outlier a weight of -0 stays one.
        weights = numpy.where(outliers == 0, dense, dense + outliers.astype(single))

        order = numpy.arange(inputs)
        if ordered:
            order = draw.permutation(inputs)
        back = numpy.argsort(order)
        tensors = {
            "dense_weights": words.view(numpy.int64).reshape(-1), "row_offsets": offsets,
            # An empty list of spqr-quant is one of floats.
            "col_vals": col_vals if share else numpy.zeros(0, single),
            "in_perm": order.astype(numpy.uint16).view(numpy.int32)[:inputs // 2 * ordered],
        }
        config = {"quant_method": "spqr", "bits": 3, "beta1": 16, "beta2": 16,
                  "modules_to_not_convert": ["lm_head.weight"],
                  "shapes": {f"layer.{key}.shape": value.size for key, value in tensors.items()}}
        case(name, PACKER, config,
             {key: torch.from_numpy(value.copy()) for key, value in tensors.items()},
             weights[:, back], codes[:, back], scales)


FAMILIES = {
    "gptq": ("gptq_", gptq),
    "awq": ("awq_", awq),
    "fp8": ("fp8_", fp8),
    "compressed-tensors": (
        "compressed_tensors_", lambda: compressed("compressed_tensors_", COMPRESSED)),
    "compressed-actorder": (
        "compressed_actorder_", lambda: compressed("compressed_actorder_", COMPRESSED_ACTORDER)),
    "bitsandbytes": ("bitsandbytes_", bitsandbytes),
    "spqr": ("spqr_", spqr),
}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    path = DATA / "cases.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    for family in sys.argv[1:]:
        prefix, make = FAMILIES[family]
        CASES.clear()
        for old in DATA.glob(prefix + "*.safetensors"):
            old.unlink()
        with torch.no_grad():
            make()
        assert all(entry["name"].startswith(prefix) for entry in CASES)
        entries = [entry for entry in entries if not entry["name"].startswith(prefix)] + CASES
    entries.sort(key=lambda entry: entry["name"])
    path.write_text(json.dumps(entries, indent=1) + "\n")
    total = sum(file.stat().st_size for file in DATA.iterdir())
    print(f"{len(entries)} cases, {total} bytes")
    assert total <= 1.6 * 2**20


if __name__ == "__main__":
    main()
