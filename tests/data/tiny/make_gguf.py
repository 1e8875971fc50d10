#!/usr/bin/env python3
"""usage: make_gguf.py CASE... -- makes CASE/model.gguf of CASE/config.json and CASE/model.safetensors.

A case is a tiny model with random weights as Hugging Face's transformers write it. Beside the GGUF
file, tests need CASE/case.json (token ids, positions) and CASE/logits.npy (fp32, computed by
transformers). Run it by hand when a case is added; it needs the packages gguf and numpy. Matrices
stay bf16, norms become fp32, as llama.cpp's converter does.
"""

import json
import pathlib
import sys

import gguf
import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(path):
    """Yields (name, array) of a safetensors file; a bf16 tensor is an array of uint16."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = {"BF16": np.uint16, "F32": np.float32}[entry["dtype"]]
        yield name, np.frombuffer(data[8 + size + begin:8 + size + end], dtype).reshape(entry["shape"])


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return NAMES[stem] + ".weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


def convert(case):
    config = json.loads((case / "config.json").read_text())
    writer = gguf.GGUFWriter(case / "model.gguf", config["model_type"])
    writer.add_name(case.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for name, array in tensors(case / "model.safetensors"):
        if array.ndim == 1 and array.dtype == np.uint16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        raw = gguf.GGMLQuantizationType.BF16 if array.dtype == np.uint16 else None
        writer.add_tensor(gguf_name(name), array.view(np.uint8) if raw is not None else array,
                          raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        convert(pathlib.Path(argument))
