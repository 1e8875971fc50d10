"""Sends bodies that are large, broken or meant for other servers to the real program."""

import json
import pathlib
import re
import threading
import time

import grpc
import httpx
import pytest

from flotilla_server import LONG, MODEL, SANITIZED, Server
from grpc_test import details

BODY = 4 << 20
SLOW = 10 if SANITIZED else 1
HI = [{"role": "user", "content": "hi"}]


def filled(before, piece, after, size=BODY):
    """`piece` as often as fits between the two."""
    count = (size - len(before) - len(after)) // len(piece)
    return before + (piece * count).rstrip(b",") + after


def keys(before, value, after, size):
    pieces, length = [before], len(before) + len(after)
    for i in range(size):
        piece = b'"%d":%s' % (i, value)
        length += len(piece) + 1
        if length > size:
            return pieces[0] + b",".join(pieces[1:]) + after
        pieces.append(piece)


MODEL_FIELD = b'{"model":"' + MODEL.encode() + b'",'
THIRTY_TWO = b'"prompt":["x"' + b',"x"' * 31 + b"],"
def bodies(size):
    return {
        "empty messages": filled(MODEL_FIELD + b'"messages":[', b"{},", b"]}", size),
        "messages": filled(MODEL_FIELD + b'"messages":[',
                           b'{"role":"user","content":"x"},', b"]}", size),
        "empty objects": filled(MODEL_FIELD + b'"tools":[', b"{},", b"]}", size),
        "empty lists": filled(MODEL_FIELD + b'"prompt":[', b"[],", b"]}", size),
        "deep nests": filled(MODEL_FIELD + b'"prompt":[',
                             b"[" * 50 + b"]" * 50 + b",", b"]}", size),
        "an open nest": filled(MODEL_FIELD + b'"prompt":', b"[", b"", size),
        "escapes": filled(MODEL_FIELD + b'"stop":"', rb"\u0000", b'"}', size),
        "numbers": filled(MODEL_FIELD + b'"prompt":[', b"1,", b"]}", size),
        "floats": filled(MODEL_FIELD + b'"prompt":[', b"0.123456789123456789,", b"]}", size),
        "stops": filled(MODEL_FIELD + b'"prompt":"x","stop":[', b'"x",', b"]}", size),
        "keys": keys(MODEL_FIELD, b"1", b"}", size),
        "biases": keys(MODEL_FIELD + b'"prompt":"x","logit_bias":{', b"1", b"}}", size),
        "parts": filled(MODEL_FIELD + b'"messages":[{"role":"user","content":[',
                        b'{"type":"text","text":""},', b"]}]}", size),
        # The part that 32 prompts share. When it was copied for each, it took 140 MiB.
        "shared stop tokens": filled(MODEL_FIELD + THIRTY_TWO + b'"stop_token_ids":[', b"1111111,",
                                     b"]}", size),
        "shared stop": filled(MODEL_FIELD + THIRTY_TWO + b'"stop":"', b"x", b'"}', size),
        "shared salt": filled(MODEL_FIELD + THIRTY_TWO + b'"cache_salt":"', b"x", b'"}', size),
        "invalid UTF-8 at the end": filled(MODEL_FIELD + b'"prompt":"', b"x", b'\xff"}', size),
    }


LARGE = bodies(BODY)


class HealthWatch:
    """Asks for /health over one connection; `slowest` is the longest time of an answer."""

    def __init__(self, server):
        self.slowest, self.stop = 0, False
        self.http = httpx.Client(base_url=server.url, timeout=60)
        self.http.get("/health")
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop:
            started = time.monotonic()
            assert self.http.get("/health").status_code == 200
            self.slowest = max(self.slowest, time.monotonic() - started)
            time.sleep(0.001)  # leaves the machine to the server

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop = True
        self.thread.join()
        self.http.close()


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_bodies_stop_nobody(server, name):
    """750 KB of empty messages once took 17 s, for this client and for everybody else. On a
    machine that does nothing else they take 0.3 s and 50 ms."""
    slowest = 0
    with HealthWatch(server) as health:
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            started = time.monotonic()
            answer = server.http.post(path, content=LARGE[name], timeout=60 * SLOW,
                                      headers={"content-type": "application/json"})
            slowest = max(slowest, time.monotonic() - started)
            assert answer.status_code == 400, answer.text[:200]
            assert len(answer.content) < 2000
    print(f"{name}: {slowest:.3f} s, /health {health.slowest:.3f} s")
    assert slowest < 5 * SLOW
    assert health.slowest < 1 * SLOW


def best_times(server, body, path, rounds=3):
    """The times of a body and of the slowest /health beside it: the least of so many tries."""
    times, healths = [], []
    for _ in range(rounds):
        with HealthWatch(server) as health:
            started = time.monotonic()
            server.http.post(path, content=body, timeout=60 * SLOW)
            times.append(time.monotonic() - started)
        healths.append(health.slowest)
    return min(times), min(healths)


SMALL = bodies(BODY // 4)


@pytest.mark.parametrize("name", LARGE)
def test_time_grows_with_the_body(server, name):
    """Quadratic time would be 16 times as long. Times below 50 ms are not judged."""
    small, _ = best_times(server, SMALL[name], "/v1/completions")
    large, _ = best_times(server, LARGE[name], "/v1/completions")
    assert large <= max(8 * small, 0.05 * SLOW)


@pytest.mark.skipif(not LONG or SANITIZED, reason="needs a machine that does nothing else")
@pytest.mark.parametrize("name", LARGE)
def test_the_largest_bodies_on_an_idle_machine(server, name):
    """Only work that the server does each time counts, not one stall of the machine."""
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        seconds, health = best_times(server, LARGE[name], path)
        print(f"{name} {path}: {seconds:.3f} s, /health {health:.3f} s")
        assert seconds <= 0.3
        assert health <= 0.05


def test_memory_of_large_bodies(tmp_path):
    """Eight bodies at once, again and again, take memory for their text and for the documents
    that the pool makes."""
    with Server(tmp_path) as server:
        server.post("/v1/completions", model=MODEL, prompt="x", max_tokens=1)
        before = server.look().rss_bytes
        most = [before]
        bodies = [LARGE[name] for name in ("empty lists", "numbers", "keys", "parts")] * 2

        def send(body):
            with httpx.Client(base_url=server.url, timeout=60 * SLOW) as http:
                for _ in range(20 if LONG else 4):
                    assert http.post("/v1/completions", content=body).status_code in (400, 429)
                    most[0] = max(most[0], server.look().rss_bytes)

        threads = [threading.Thread(target=send, args=[body]) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = (most[0] - before) >> 20
        print(f"grown by {grown} MiB")
        assert SANITIZED or grown <= 128
        assert server.post("/v1/completions", model=MODEL, prompt="x", max_tokens=1)


def peak(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10


def grown_by(server, path, content):
    """The most MiB that one request takes, and its answer."""
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # peak = now
    before = peak(server)
    answer = server.http.post(path, content=content, timeout=60 * SLOW)
    return peak(server) - before, answer


@pytest.mark.parametrize("name", [name for name in LARGE if "shared" in name])
def test_what_prompts_share_is_copied_for_none_that_is_refused(tmp_path, name):
    with Server(tmp_path) as server:
        grown, answer = grown_by(server, "/v1/completions", LARGE[name])
        print(f"{name}: {grown} MiB")
        assert answer.status_code == 400
        assert SANITIZED or grown <= 48


def test_memory_of_tokenizing_one_piece(tmp_path):
    """A piece of one letter once took 91 MiB, and one of blanks 100 MiB. The tokenizer no longer
    merges a piece that cannot fit."""
    size = BODY - 100
    with Server(tmp_path) as server:
        for unit, status in (("a", 200), (" ", 200), ("the quick brown fox ", 200), ("7", 400),
                             ("\U0001f600", 400), ("\u4e2d", 400)):
            text = unit * (size // len(unit.encode()))
            body = json.dumps({"model": MODEL, "prompt": text}, ensure_ascii=False).encode()
            grown, answer = grown_by(server, "/tokenize", body)
            print(f"{unit!r}: {grown} MiB")
            assert answer.status_code == status, answer.text[-200:]
            assert SANITIZED or grown <= 80
            if status == 400:
                assert "more than 1048576 tokens" in answer.text


def unreadable(channel, method, data):
    call = channel.unary_stream if method == "Generate" else channel.unary_unary
    answer = call(f"/flotilla.v1.Inference/{method}", request_serializer=lambda x: x,
                  response_deserializer=lambda x: x)
    with pytest.raises(grpc.RpcError) as error:
        result = answer(data, timeout=60)
        list(result if method == "Generate" else [result])
    return error.value


@pytest.mark.parametrize("method", ["Generate", "Tokenize", "Detokenize", "GetModelInfo", "Abort",
                                    "ListModels"])
def test_an_unreadable_message_is_the_clients_fault(channel, stub, pb, method):
    broken = {"a length past the end": b"\x0a\x7fx", "a field without a number": b"\x00",
              "noise": b"\xff" * 100, "a wire type that there is not": b"\x0f"}
    if method != "ListModels":  # it has no strings
        broken["a string that is not UTF-8"] = b"\x0a\x02\xc3\x28"
    for what, data in broken.items():
        error = unreadable(channel, method, data)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, f"{what}: {error}"
        assert "not a readable flotilla.v1." in error.details(), what
        assert details(error)["ErrorInfo"].reason == "invalid_protobuf"
    # The server serves the next call of the connection.
    assert stub.ListModels(pb.messages.ListModelsRequest()).models


@pytest.mark.parametrize("method", ["Generate", "ListModels"])
def test_a_call_without_a_message_is_grpcs_own_error(channel, stub, pb, method):
    call = channel.stream_stream if method == "Generate" else channel.stream_unary
    answer = call(f"/flotilla.v1.Inference/{method}", request_serializer=lambda x: x,
                  response_deserializer=lambda x: x)
    with pytest.raises(grpc.RpcError) as error:
        result = answer(iter(()), timeout=60)
        list(result if method == "Generate" else [result])
    assert error.value.code() == grpc.StatusCode.INTERNAL
    assert stub.ListModels(pb.messages.ListModelsRequest()).models


def refused(server, path, body, status=400):
    answer = server.http.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_errors_say_what_is_wrong(server):
    error = refused(server, "/v1/completions", b'{"model":"x","prompt":"\xff"}')
    assert error["message"] == "the request body is not valid UTF-8 at byte 24"
    error = refused(server, "/v1/completions",
                    {"model": MODEL, "prompt": [18446744073709551615]})
    assert error["param"] == "prompt" and "18446744073709551615" in error["message"]
    call = {"role": "assistant", "content": None,
            "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f"}}]}
    error = refused(server, "/v1/chat/completions", {"model": MODEL, "messages": HI + [call]})
    assert error["param"] == "messages[1].tool_calls[0].type"
    assert error["code"] == "unsupported_field"
    error = refused(server, "/v1/chat/completions",
                    {"model": MODEL, "messages": [{"role": "king", "content": "x"}]})
    assert error["param"] == "messages[0].role"


def test_what_is_not_there_names_what_is(server, stub, pb):
    for path, meant in {"/chat/completions": "/v1/chat/completions",
                        "/completions": "/v1/completions", "/models": "/v1/models",
                        "/v1/v1/completions": "/v1/completions", "/v1/tokenize": "/tokenize",
                        "/v1/chat/completion": "/v1/chat/completions"}.items():
        error = server.http.get(path)
        assert error.status_code == 404
        assert error.json()["error"]["message"].endswith(f"; did you mean {meant}?")
    assert "did you mean" not in server.http.get("/nowhere").text
    error = refused(server, "/v1/completions", {"model": "smolm2", "prompt": "x"}, 404)
    assert f"'{MODEL}'" in error["message"] and error["code"] == "model_not_found"
    assert f"'{MODEL}'" in server.http.get("/v1/models/smolm2").json()["error"]["message"]
    assert f"'{MODEL}'" in refused(server, "/v1/completions", {"prompt": "x"})["message"]
    for name, code in {"smolm2": grpc.StatusCode.NOT_FOUND,
                       "": grpc.StatusCode.INVALID_ARGUMENT}.items():
        for call in (lambda: stub.Tokenize(pb.messages.TokenizeRequest(model=name, text="x")),
                     lambda: stub.GetModelInfo(pb.messages.GetModelInfoRequest(model=name)),
                     lambda: list(stub.Generate(pb.messages.GenerateRequest(model=name,
                                                                            text="x")))):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() == code
            assert f"'{MODEL}'" in error.value.details()


def test_continuous_usage(client):
    """Asks for usage as GuideLLM does."""
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=8, n=2, stream=True, extra_body={"ignore_eos": True},
        stream_options={"include_usage": True, "continuous_usage_stats": True}))
    for index in (0, 1):
        own = [c.usage for c in chunks if c.choices and c.choices[0].index == index]
        assert [u.completion_tokens for u in own] == sorted(u.completion_tokens for u in own)
        assert own[0].completion_tokens == 0 and own[-1].completion_tokens == 8
        assert all(u.total_tokens == u.prompt_tokens + u.completion_tokens for u in own)
    assert chunks[-1].usage.completion_tokens == 16
    assert {c.usage.prompt_tokens for c in chunks} == {chunks[-1].usage.prompt_tokens}


def test_permissive_servers_ignore_nested_fields_too(tmp_path):
    message = {"role": "user", "reasoning_content": "x",
               "content": [{"type": "text", "text": "hi",
                            "cache_control": {"type": "ephemeral"}}]}
    body = {"model": MODEL, "messages": [message], "max_tokens": 1, "stream": True, "top": 1,
            "stream_options": {"include_usage": True, "more": 1}}
    with Server(tmp_path, "--permissive") as server:
        answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert set(answer.headers["x-flotilla-ignored-fields"].split(", ")) == {
            "top", "stream_options.more", "messages[0].reasoning_content",
            "messages[0].content[0].cache_control"}
        # The server does not ignore fields that it knows.
        message["tool_calls"] = [{"id": "1"}]
        assert (refused(server, "/v1/chat/completions", body)["param"]
                == "messages[0].tool_calls[0].function")
