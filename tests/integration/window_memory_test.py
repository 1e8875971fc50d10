"""What windows save, measured at a running server: a model like Gemma 3, with a window of 512 in five
of six layers, and its twin whose layers all keep every position. Both are Hugging Face folders with
random weights.
"""

import json
import pathlib
import random
import re
import struct
import subprocess
import threading

import httpx
import pytest

from flotilla_server import MODEL, SANITIZED, Server, binary

LAYERS, HIDDEN, FFN, HEADS, HEAD_DIM = 12, 64, 128, 2, 32
CONTEXT, WINDOW = 8192, 512
ANSWER = 32
MOST_BLOCKS = 0.30
MOST_COMPUTED = 0.05


def byte_characters():
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def write_tokenizer(folder):
    vocabulary = {character: index for index, character in enumerate(byte_characters())}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    (folder / "tokenizer_config.json").write_text("{}")


def tensors():
    """(name, shape) of all tensors."""
    width = HEADS * HEAD_DIM
    yield "model.embed_tokens.weight", (256, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        shapes = {
            "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
            "pre_feedforward_layernorm": (HIDDEN,), "post_feedforward_layernorm": (HIDDEN,),
            "self_attn.q_norm": (HEAD_DIM,), "self_attn.k_norm": (HEAD_DIM,),
            "self_attn.q_proj": (width, HIDDEN), "self_attn.k_proj": (HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, width),
            "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
            "mlp.down_proj": (HIDDEN, FFN)}
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}.weight", shape


def write_model(folder, windows):
    """A folder whose layers all keep every position unless `windows`."""
    folder.mkdir()
    kinds = ["sliding_attention" if windows and (layer + 1) % 6 else "full_attention"
             for layer in range(LAYERS)]
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 256,
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
        "query_pre_attn_scalar": HEAD_DIM, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "max_position_embeddings": 2 * CONTEXT, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "sliding_window": WINDOW, "layer_types": kinds,
        "tie_word_embeddings": True, "eos_token_id": 0}))
    write_tokenizer(folder)
    draw, header, data = random.Random(1), {}, bytearray()
    for name, shape in tensors():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(data)
        data += struct.pack(f"<{count}f", *(draw.gauss(0, 0.1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def layers_per_block(folder):
    """A block holds the layers of one KV group. `inspect` names the groups where there are several."""
    page = subprocess.run([binary(), "inspect", folder], check=True, capture_output=True,
                          text=True).stdout
    groups = re.search(r"KV in \d+ groups of (\d+) layers", page)
    return int(groups[1]) if groups else LAYERS


def complete(server, prompt, tokens):
    return server.post("/v1/completions", model=MODEL, prompt=prompt, max_tokens=tokens,
                       temperature=0, ignore_eos=True)["usage"]


def most_used_blocks(server, prompt):
    """The most blocks that were in use while the prompt was answered."""
    most, done = 0, threading.Event()
    failures = []

    def ask():
        try:
            complete(server, prompt, ANSWER)
        except (AssertionError, httpx.HTTPError) as error:
            failures.append(error)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    while not done.wait(0.005):
        most = max(most, server.used_blocks())
    thread.join()
    assert not failures, failures
    return most


@pytest.fixture
def serve(tmp_path, monkeypatch):
    def start(windows):
        folder = write_model(tmp_path / f"model-{windows}", windows)
        monkeypatch.setenv("FLOTILLA_MODEL", str(folder))
        directory = pathlib.Path(tmp_path / f"server-{windows}")
        directory.mkdir()
        return folder, Server(directory, "--max-model-len", str(CONTEXT), "--kv-blocks", "2048")
    return start


@pytest.mark.skipif(SANITIZED, reason="computes 16,000 tokens")
def test_windows_save_memory(serve, record_property):
    draw = random.Random(2)
    prompt = [draw.randrange(1, 256) for _ in range(CONTEXT - ANSWER)]
    used = {}
    for windows in True, False:
        folder, server = serve(windows)
        with server:
            used[windows] = most_used_blocks(server, prompt) * layers_per_block(folder)
            if windows:
                # The pool has room for both requests, so half of the first one's prompt is found.
                server.wait_idle()
                again = prompt[:CONTEXT // 2] + [draw.randrange(1, 256) for _ in range(64)]
                usage = complete(server, again, 1)
    ratio = used[True] / used[False]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    record_property("blocks of layers that windows use, of those of full layers", f"{ratio:.3f}")
    record_property("tokens of half the prompt and 64 more that are computed",
                    f"{len(again) - cached} of {len(again)}")
    # All layers of the twin keep the whole prompt.
    assert used[False] >= LAYERS * len(prompt) // 16
    assert ratio <= MOST_BLOCKS
    assert len(again) - cached <= MOST_COMPUTED * len(again)
