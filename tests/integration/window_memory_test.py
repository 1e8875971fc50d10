"""A model whose layers keep a window takes little KV memory in a real server, and the prefix cache
finds an earlier part of its prompts.

The model has Gemma 3's shape with random weights: a window of 512, and one layer in six keeps every
position. It is compared with a twin whose layers all keep every position. A block holds 16 tokens
of the layers of one KV group: of two layers in the model, which has six groups, and of all twelve
in the twin, which has one. So the tests compare blocks times layers of a block. Bytes are
proportional to that, since all layers have the same KV heads. `flotilla inspect` says how many
layers a block has.
"""

import array
import contextlib
import json
import math
import random
import re
import struct
import subprocess

import pytest

from flotilla_server import MODEL, Server, binary

LAYERS, HIDDEN, FFN, HEADS, HEAD_DIM, VOCABULARY = 12, 64, 96, 2, 16, 256
WINDOW, CONTEXT, BLOCK = 512, 65536, 16
LENGTH = 8192  # of a prompt with its answer
ANSWER = 64
PROMPT = random.Random(1).choices(range(3, VOCABULARY), k=LENGTH - ANSWER)
FLAGS = "--threads", "1", "--kv-blocks"
LARGE_POOL = *FLAGS, "16384"
MOST_MEMORY, MOST_COMPUTED = 0.30, 0.05
KINDS = {"windows": {"sliding_window_pattern": 6},
         "full": {"layer_types": ["full_attention"] * LAYERS}}


def weight_shapes():
    yield "embed_tokens", (VOCABULARY, HIDDEN)
    yield "norm", (HIDDEN,)
    for layer in range(LAYERS):
        for name, *shape in (
                ("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN),
                ("pre_feedforward_layernorm", HIDDEN), ("post_feedforward_layernorm", HIDDEN),
                ("self_attn.q_norm", HEAD_DIM), ("self_attn.k_norm", HEAD_DIM),
                ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
                ("self_attn.k_proj", HEAD_DIM, HIDDEN), ("self_attn.v_proj", HEAD_DIM, HIDDEN),
                ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
                ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
                ("mlp.down_proj", HIDDEN, FFN)):
            yield f"layers.{layer}.{name}", tuple(shape)


def write_folder(folder, kind):
    """Writes the model or its twin as a Hugging Face folder. Both have the same weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": HIDDEN,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": 1, "head_dim": HEAD_DIM, "query_pre_attn_scalar": HEAD_DIM,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "max_position_embeddings": CONTEXT, "sliding_window": WINDOW, "vocab_size": VOCABULARY,
        "tie_word_embeddings": True, "eos_token_id": 0, **KINDS[kind]}))
    draw = random.Random(2)
    header, data = {}, array.array("f")
    for name, shape in weight_shapes():
        begin, most = len(data), 0.1 if len(shape) == 1 else math.sqrt(3 / shape[-1])
        data.extend(draw.uniform(-most, most) for _ in range(math.prod(shape)))
        header[f"model.{name}.weight"] = {"dtype": "F32", "shape": shape,
                                          "data_offsets": [4 * begin, 4 * len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + data.tobytes())
    # No test sends text, so the tokens are any.
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": byte_level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "model": {"type": "BPE", "merges": [],
                  "vocab": {f"t{i}": i for i in range(VOCABULARY)}}}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    return {kind: write_folder(made / kind, kind) for kind in KINDS}


@contextlib.contextmanager
def serving(folder, directory, *flags):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOTILLA_MODEL", str(folder))
        server = Server(directory, *flags)
    with server:
        yield server


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    """A server of the model, with room for everything that the tests send."""
    with serving(folders["windows"], tmp_path_factory.mktemp("windows"), *LARGE_POOL) as one:
        yield one


def layers_of_a_block(folder):
    shown = subprocess.run([binary(), "inspect", folder], check=True, capture_output=True,
                           text=True).stdout
    groups = re.search(r"KV in \d+ groups of (\d+) layers", shown)
    # It says nothing of a model whose layers have one group.
    return int(groups[1]) if groups else int(re.search(r": (\d+) layers of ", shown)[1])


def used_and_generated(server):
    """The blocks in use and the tokens generated so far, of one page of metrics."""
    page = server.metrics().items()
    return (sum(value for key, value in page if key.startswith(name) and label in key)
            for name, label in (("flotilla_kv_blocks{", 'state="used"'),
                                ("flotilla_scheduler_tokens_total{", 'kind="generated"')))


def memory_share(server, folder):
    """Reads how many blocks are in use while an answer to PROMPT streams. Returns their memory as a
    share of what all layers take if they keep every position that the sequence then has."""
    _, before = used_and_generated(server)
    # The answer would go on for 57,408 tokens, so the request still runs when its blocks are read.
    body = dict(model=MODEL, prompt=PROMPT, max_tokens=CONTEXT - len(PROMPT), ignore_eos=True,
                stream=True, seed=1)
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        for _ in response.iter_lines():
            blocks, generated = used_and_generated(server)
            break
    server.wait_idle()
    positions, layers = len(PROMPT) + generated - before, layers_of_a_block(folder)
    print(f"{positions:.0f} positions take {blocks:.0f} blocks of {layers} layers")
    return blocks * layers / (LAYERS * positions / BLOCK)


def answer(server, prompt, **fields):
    """The usage of a completion, and its tokens with log-probabilities."""
    body = server.post("/v1/completions", model=MODEL, prompt=prompt, ignore_eos=True, seed=1,
                       logprobs=1, return_token_ids=True, **{"max_tokens": ANSWER, **fields})
    choice = body["choices"][0]
    return body["usage"], (choice["token_ids"], choice["logprobs"]["token_logprobs"])


def test_windows_take_thirty_percent_of_the_memory(server, folders, tmp_path, record_property):
    windows = memory_share(server, folders["windows"])
    with serving(folders["full"], tmp_path, *LARGE_POOL) as twin:
        full = memory_share(twin, folders["full"])
    assert full == pytest.approx(1, abs=0.02)  # the metrics are of the same moment
    record_property("KV memory with windows / without", f"{windows / full:.3f}")
    assert 0 < windows <= MOST_MEMORY * full


def test_a_pool_of_thirty_percent_serves_the_whole_prompt(server, folders, tmp_path):
    """Not even while the prompt is computed are more blocks needed. Blocks that were given back are
    used again, and the answer has the same bits."""
    full = LAYERS * (LENGTH // BLOCK)
    pool = int(MOST_MEMORY * full) // layers_of_a_block(folders["windows"])
    _, expected = answer(server, PROMPT)
    with serving(folders["windows"], tmp_path, *FLAGS, str(pool)) as small:
        usage, given = answer(small, PROMPT)
        assert usage["total_tokens"] == LENGTH
        assert given == expected
        assert small.metric("flotilla_scheduler_preemptions_total") == 0
        assert small.metric("flotilla_kv_prefix_evictions_total") > 0


def test_half_of_a_prompt_is_found(server):
    answer(server, PROMPT)
    prompt = PROMPT[:LENGTH // 2] + random.Random(3).choices(range(3, VOCABULARY), k=64)
    before = server.metric("flotilla_worker_rows_total", phase="prefill")
    usage, found = answer(server, prompt)
    computed = server.metric("flotilla_worker_rows_total", phase="prefill") - before
    assert 0 < computed <= MOST_COMPUTED * len(prompt)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert len(prompt) - cached <= MOST_COMPUTED * len(prompt)
    # Under another salt all of it is computed, with the same answer.
    usage, alone = answer(server, prompt, cache_salt="other")
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert alone == found
