#!/usr/bin/env python3
"""Makes the cases of tests/data/made: tiny models whose weights no file has.

A case is a folder with config.json, tensors.tsv (the name and the shape of each weight), case.json
and logits.npy. The weights are functions of the seed in case.json and of their names (made_weights
below, and tests/support/made_weights.h: both give the same bits). Hugging Face's transformers says
what logits such a model has in fp32, and which 32 tokens follow its first 16 greedily. Seeds are
tried until the best token of each step is at least 1e-3 better than the second.

Each case varies one of tests/data/tiny: 6 heads, 3 KV heads, hidden 96, FFN 224, 4 layers. Families
with one KV head, or with as many as heads, keep that. BLOOM's FFN has 384 columns, because its class has
no width but four times the hidden size.

    python3 -m venv v && v/bin/pip install -r requirements.txt
    v/bin/python make_cases.py            # all cases
    v/bin/python make_cases.py qwen2      # one
"""

import copy
import json
import math
import pathlib
import shutil
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
TINY, MADE = ROOT / "tests/data/tiny", ROOT / "tests/data/made"
VOCABULARY, PROMPT, OUTPUT, MARGIN = 256, 16, 32, 1e-3
MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15

# Cases that vary none of tests/data/tiny: what they change in the configuration of another.
OWN = {
    "qwen2_moe": ("qwen2", {
        "model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 72, "shared_expert_intermediate_size": 80,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }),
    # The second one, with other widths, a dense layer between those of experts, and weights of experts
    # that add up to 1.
    "qwen2_moe_sparse": ("qwen2", {
        "model_type": "qwen2_moe", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "num_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
    }),
    # An FFN whose last 32 columns are padded.
    "llama_ffn_of_200": ("llama", {"intermediate_size": 200}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_linear": ("llama", {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    # As Gemma 3 from 4B on: only layers without a window are scaled.
    "gemma3_linear": ("gemma3_text", {"rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    # As Falcon 11B.
    "falcon_one_norm": ("falcon_gqa", {"num_ln_in_parallel_attn": 1}),
    # As StableLM 2, and as others that are called so.
    "stablelm_biases": ("stablelm", {"use_qkv_bias": True}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True}),
    "gpt_neox_sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "qwen2_windows": ("qwen2", {
        "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2,
        "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2}),
    "phi_rotary_of_12": ("phi", {"partial_rotary_factor": 0.75, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    # As Phi-4-mini.
    "phi3_rotary_of_12": ("phi3", {"partial_rotary_factor": 0.75, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    # Heads whose size is no multiple of 16, with each kind of norm, and with fused matrices.
    "qwen3_heads_of_40": ("qwen3", {"head_dim": 40}),
    "cohere_heads_of_24": ("cohere", {
        "num_attention_heads": 4, "num_key_value_heads": 2, "use_qk_norm": True}),
    "gpt2_heads_of_24": ("gpt2", {"n_head": 4}),
    "ernie4_5": ("llama", {"model_type": "ernie4_5", "use_bias": True}),
    "gpt_bigcode_mha": ("gpt_bigcode_mqa", {"multi_query": False, "num_key_value_heads": 6}),
    "qwen2_padded": ("qwen2", {"vocab_size": VOCABULARY + 40}),
    "llama_dynamic": ("llama", {
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    }),
    "phi3_longrope_short": ("phi3", {
        "max_position_embeddings": 4096, "original_max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": 128,
            "short_factor": [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7],
            "long_factor": [1.1, 1.3, 1.9, 2.7, 4.3, 8.1, 14.7, 25.3],
        },
    }),
    # All prompts are longer than the first context, so that the long factors count.
    "phi3_longrope": ("phi3", {
        "original_max_position_embeddings": 8,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
            "original_max_position_embeddings": 8,
            "short_factor": [1.0, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7],
            "long_factor": [1.1, 1.3, 1.9, 2.7, 4.3, 8.1, 14.7, 25.3],
        },
    }),
}
# Cases whose tables of token vectors have rows beyond the VOCABULARY tokens of a tokenizer. A
# number of greedy steps have their largest logit there, and take the best token all the same.
PADDED = {"qwen2_padded": 4}
# Cases that are served for so many positions, and for no more. RoPE is resolved for them once.
SERVED = {"llama_dynamic": 128, "phi3_longrope_short": 128}
# What a case says besides.
CHANGES = {
    "qwen3_moe": {"moe_intermediate_size": 72, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "gptj": {"rotary_dim": 16, "n_inner": 224},
    # Others of these families have four times the hidden size.
    "gpt2": {"n_inner": 224},
    "gpt_bigcode_mqa": {"n_inner": 224},
    # YaRN, whose scale of scores counts, groups of experts, two shared experts, biases, and norms of
    # latents with another eps than the others. Widths are no multiples of 32.
    "deepseek_v2_mla": {
        "attention_bias": True, "mlp_bias": True,
        "q_lora_rank": 40, "kv_lora_rank": 48, "qk_nope_head_dim": 24, "v_head_dim": 20,
        "qk_head_dim": 40, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 1.5, "n_shared_experts": 2, "moe_intermediate_size": 72,
        "rms_norm_eps": 1e-3, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32,
            "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64},
    },
    "deepseek_v3_mla": {
        "q_lora_rank": None, "kv_lora_rank": 80, "qk_nope_head_dim": 40, "v_head_dim": 36,
        "qk_head_dim": 56, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 3,
        "topk_group": 2, "moe_intermediate_size": 72, "first_k_dense_replace": 2,
        "rms_norm_eps": 1e-3, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32,
            "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 128},
    },
}


def mix(x):
    """The finaliser of SplitMix64, of an array of uint64."""
    x = x + numpy.uint64(STEP)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return x ^ (x >> numpy.uint64(31))


def fnv1a(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def made_weights(name, shape, seed):
    """Uniform in bf16. Matrices: variance 1 / (the last axis). Vectors: at most 0.1 from 0, or from
    1 where a norm multiplies by them."""
    count = math.prod(shape)
    with numpy.errstate(over="ignore"):
        start = mix(numpy.array([fnv1a(name)], numpy.uint64) ^ numpy.uint64(seed))
        bits = mix(start + numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(STEP))
    unit = (bits.view(numpy.int64) >> 40).astype(numpy.float32) * numpy.float32(2.0**-23)
    if len(shape) > 1:
        values = unit * numpy.sqrt(numpy.float32(3) / numpy.float32(shape[-1]))
    else:
        norm = name.endswith(".weight")
        values = numpy.float32(1 if norm else 0) + numpy.float32(0.1) * unit
    return torch.from_numpy(values.reshape(shape)).to(torch.bfloat16)


def varied(config):
    """The configuration with other widths."""
    config = dict(config)
    heads = config.get("num_attention_heads", config.get("n_head"))

    def change(value, *names):
        for name in names:
            if config.get(name) is not None:
                config[name] = value

    for name in ("num_key_value_heads", "num_kv_heads"):
        kv_heads = config.get(name)
        if kv_heads is not None:
            config[name] = 1 if kv_heads == 1 else 6 if kv_heads == heads else 3
    change(96, "hidden_size", "n_embd", "word_embed_proj_dim")
    change(6, "num_attention_heads", "n_head")
    change(224, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    change(4, "num_hidden_layers", "n_layer")
    if "layer_types" in config and config["layer_types"]:
        other = "full_attention"
        first = config["layer_types"][0]
        config["layer_types"] = [first, first, other, first] if first != other else [other] * 4
    if config.get("no_rope_layers"):
        config["no_rope_layers"] = [1, 0, 1, 1]
    return config


def write_weights(folder, names, seed):
    weights = {name: made_weights(name, shape, seed) for name, shape in names.items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def greedy(model, ids, padded):
    """The tokens, and the least distance of a best token from the second. The best of all logits
    belongs to no token in at least `padded` steps."""
    ids, margin = list(ids), math.inf
    for _ in range(OUTPUT):
        logits = model(torch.tensor([ids])).logits[0, -1]
        best = torch.topk(logits[:VOCABULARY], 2)
        padded -= bool(logits.max() > best.values[0])
        margin = min(margin, float(best.values[0] - best.values[1]))
        if margin < MARGIN:
            return None, margin
        ids.append(int(best.indices[0]))
    return ids[-OUTPUT:] if padded <= 0 else None, margin


def serve_for(model, ids, positions):
    """Fixes RoPE of the model as transformers has it for a text of so many positions, of which `ids`
    are the first."""
    model = copy.deepcopy(model)
    more = torch.tensor([ids + [3] * (positions - len(ids))])
    expected = model(more).logits[0, :len(ids)]  # transformers resolves it here
    model.model.rotary_emb.rope_type = "default"
    assert torch.equal(model(more).logits[0, :len(ids)], expected)
    return model


def make(name):
    base, more = OWN.get(name, (name, {}))
    config = varied(json.loads((TINY / base / "config.json").read_text()))
    config.update(more)
    config.update(CHANGES.get(name, {}))
    for key in ("architectures", "dtype", "transformers_version"):
        config.pop(key, None)
    kind = transformers.AutoConfig.for_model(**config)
    kind.dtype = torch.bfloat16
    ids = numpy.random.RandomState(fnv1a(name) & 0xFFFFFFFF).randint(3, VOCABULARY, 80).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        transformers.AutoModelForCausalLM.from_config(kind).to(torch.bfloat16).save_pretrained(folder)
        with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
            names = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
        for seed in range(1, 1000):
            write_weights(folder, names, seed)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager").eval()
            if name in SERVED:
                model = serve_for(model, ids, SERVED[name])
            tokens, margin = greedy(model, ids[:PROMPT], PADDED.get(name, 0))
            if tokens is not None:
                break
        else:
            sys.exit(f"{name}: no seed gives a margin of {MARGIN}")
        logits = model(torch.tensor([ids])).logits[0].numpy()
        positions = list(range(0, 80, 4)) + [79]
        target = MADE / name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "config.json", target / "config.json")
    numpy.save(target / "logits.npy", logits[positions].astype(numpy.float32))
    (target / "tensors.tsv").write_text("".join(
        f"{key}\t{','.join(map(str, shape))}\n" for key, shape in names.items()))
    case = {"ids": ids, "positions": positions, "seed": seed, "prompt": PROMPT, "greedy": tokens}
    if name in PADDED:
        case["tokens"] = VOCABULARY
    if name in SERVED:
        case["served"] = SERVED[name]
    (target / "case.json").write_text(json.dumps(case) + "\n")
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{name:16} seed {seed:3}, margin {margin:.4f}, logits {logits.std():.2f}, {size:6} bytes",
          flush=True)


def main():
    torch.set_grad_enabled(False)
    transformers.utils.logging.set_verbosity_error()
    known = sorted({path.name for path in TINY.iterdir() if path.is_dir()} | set(OWN))
    for name in sys.argv[1:] or known:
        make(name)


if __name__ == "__main__":
    main()
