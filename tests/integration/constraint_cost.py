"""What constraints add to a step, by the size of the vocabulary:

    .venv/bin/python tests/integration/constraint_cost.py 131072 262144

For each size it makes a small model with random weights and the tokens of the test model, and joins of
two of them; serves it; and lets eight clients stream answers of a form and free answers in turns. It
prints the median, the 90th and the 99th percentile of the time between two tokens, and what the form
adds to each. With --at-most it fails if it adds more to the first or the second, in three tries, because
a machine may do other work for a while, of which the third one shows most.
"""

import argparse
import concurrent.futures
import math
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time

import httpx

from flotilla_server import MODEL, Program, model_path

CLIENTS, TOKENS, ROUNDS = 8, 150, 5
PERCENTILES, JUDGED = (50, 90, 99), (50, 90)
HIDDEN, LAYERS, HEADS, FFN = 512, 6, 8, 1024
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
F32, BF16 = 0, 30  # types of tensors
SCHEMA = {"type": "array", "minItems": 5000, "items": {
    "type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {
        "type": "string"}}}, "required": ["name", "tags"], "additionalProperties": False}}


def read_metadata(path):
    """{key: value} of a GGUF file."""
    with open(path, "rb") as file:
        def number(kind):
            return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]

        def value(kind):
            if kind == STRING:
                return file.read(number("Q"))
            if kind == ARRAY:
                item, count = number("I"), number("Q")
                return [value(item) for _ in range(count)]
            return number(SCALARS[kind])

        file.read(8)  # magic, version
        number("Q")  # tensors
        return {value(STRING).decode(): value(number("I")) for _ in range(number("Q"))}


def text(value):
    return struct.pack("<Q", len(value)) + value


def entry(key, kind, data):
    return text(key.encode()) + struct.pack("<I", kind) + data


def array(kind, count, data):
    return struct.pack("<IQ", kind, count) + data


def vocabulary(known, size):
    """Tokens and their kinds: those of the model, then joins of two ordinary ones."""
    tokens, kinds = list(known["tokenizer.ggml.tokens"]), list(known["tokenizer.ggml.token_type"])
    ordinary = [token for token, kind in zip(tokens, kinds) if kind == 1]
    seen = set(tokens)
    while len(tokens) < size:
        token = random.choice(ordinary) + random.choice(ordinary)
        if len(token) <= 16 and token not in seen:
            seen.add(token)
            tokens.append(token)
            kinds.append(1)
    return tokens, kinds


def matrix(count):
    """So many bfloat16 of either sign, from 1/32 to 1/8."""
    numbers = bytearray(2 * count)
    numbers[0::2] = random.randbytes(count)  # the mantissa, and a bit of the exponent
    numbers[1::2] = random.randbytes(count).translate(bytes([0x3d, 0xbd] * 128))
    return bytes(numbers)


def write_model(path, size):
    random.seed(1)
    known = read_metadata(model_path())
    tokens, kinds = vocabulary(known, size)
    merges = known["tokenizer.ggml.merges"]
    entries = [
        entry("general.architecture", STRING, text(b"llama")),
        *(entry("llama." + key, UINT32, struct.pack("<I", value)) for key, value in (
            ("block_count", LAYERS), ("context_length", 2048), ("embedding_length", HIDDEN),
            ("feed_forward_length", FFN), ("attention.head_count", HEADS), ("attention.head_count_kv", HEADS))),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        *(entry("tokenizer.ggml." + key, STRING, text(known["tokenizer.ggml." + key]))
          for key in ("model", "pre")),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, size, b"".join(map(text, tokens)))),
        entry("tokenizer.ggml.token_type", ARRAY, array(INT32, size, struct.pack(f"<{size}i", *kinds))),
        entry("tokenizer.ggml.merges", ARRAY, array(STRING, len(merges), b"".join(map(text, merges)))),
        *(entry(f"tokenizer.ggml.{key}_token_id", UINT32,
                struct.pack("<I", known[f"tokenizer.ggml.{key}_token_id"])) for key in ("bos", "eos")),
    ]
    tensors = [("token_embd.weight", (size, HIDDEN)), ("output_norm.weight", (HIDDEN,))]
    for layer in range(LAYERS):
        tensors += [(f"blk.{layer}.{name}.weight", shape) for name, shape in (
            ("attn_norm", (HIDDEN,)), ("attn_q", (HIDDEN, HIDDEN)), ("attn_k", (HIDDEN, HIDDEN)),
            ("attn_v", (HIDDEN, HIDDEN)), ("attn_output", (HIDDEN, HIDDEN)), ("ffn_norm", (HIDDEN,)),
            ("ffn_gate", (FFN, HIDDEN)), ("ffn_up", (FFN, HIDDEN)), ("ffn_down", (HIDDEN, FFN)))]
    infos, data = b"", b""
    for name, shape in tensors:
        if len(shape) == 1:
            kind, weights = F32, struct.pack("<f", 1) * shape[0]
        else:
            kind, weights = BF16, matrix(shape[0] * shape[1])
        infos += text(name.encode()) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind,
                                                   len(data))
        data += weights + b"\0" * (-len(weights) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries)) + b"".join(entries) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def gaps(url, number, fields):
    """The times between the tokens of one streamed answer."""
    times = []
    body = dict(model=MODEL, prompt=f"Number {number}:", max_tokens=TOKENS, stream=True, temperature=1,
                seed=number, return_token_ids=True, **fields)
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as answer:
        assert answer.status_code == 200, answer.read()
        times += [time.monotonic() for line in answer.iter_lines() if '"token_ids"' in line]
    return [later - earlier for earlier, later in zip(times[10:], times[11:])]  # all have begun by then


def measure(size, folder):
    model = folder / f"{size}.gguf"
    write_model(model, size)
    server = Program(folder, "serve", "--model", str(model), "--served-model-name", MODEL, "--http-port", "0",
                     "--grpc-port", "0", "--threads", "1", "--max-seqs", str(CLIENTS))
    url = f"http://127.0.0.1:{server.ports['http']}"
    forms = {"free": dict(ignore_eos=True), "constrained": dict(structured_outputs={"json": SCHEMA})}
    found = {name: [] for name in forms}
    try:
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for round_number in range(ROUNDS + 1):  # the first one compiles the form
                for name, fields in forms.items():
                    answers = [pool.submit(gaps, url, number, fields) for number in range(CLIENTS)]
                    times = sum((one.result() for one in answers), [])
                    if round_number > 0:
                        cuts = statistics.quantiles(times, n=100)
                        found[name].append([cuts[percent - 1] for percent in PERCENTILES])
    finally:
        server.stop()
        model.unlink()
    # Rounds pair up, so that what else the machine does counts less.
    more = {}
    for percent, free, constrained in zip(PERCENTILES, zip(*found["free"]), zip(*found["constrained"])):
        added = statistics.median(b - a for a, b in zip(free, constrained))
        more[percent] = 100 * added / statistics.median(free)
        print(f"{size} tokens, {percent}th percentile: {1e3 * statistics.median(free):.2f} ms free, "
              f"{1e3 * added:+.2f} ms constrained ({more[percent]:+.1f} %)", flush=True)
    return max(more[percent] for percent in JUDGED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("size", type=int, nargs="+", help="the tokens of a vocabulary")
    parser.add_argument("--at-most", type=float, default=math.inf, metavar="PERCENT",
                        help="what a form may add to the time between two tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for size in options.size:
            if not any(measure(size, pathlib.Path(folder)) <= options.at_most for _ in range(3)):
                sys.exit(f"forms add more than {options.at_most} % with {size} tokens")


if __name__ == "__main__":
    main()
