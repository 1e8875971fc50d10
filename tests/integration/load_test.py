"""Many requests at once: no answer is lost, and no thread or descriptor stays behind."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

import httpx
import pytest

from flotilla_server import DATA, LONG, MODEL, SANITIZED, Server, wait_until

STREAMS = 64
TOKENS = 20 if SANITIZED else 200 if LONG else 80
LONG_PROMPT = 6000 if LONG else 3000
MOST_ROUNDS = 6
MOST_GROWTH = 1.01


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A separate server, so that these tests measure only their own load."""
    with Server(tmp_path_factory.mktemp("load")) as one:
        yield one


async def stream(http, index):
    """Runs one streamed completion and returns its token ids in the order of its chunks."""
    body = dict(model=MODEL, prompt=f"Story number {index}:", max_tokens=TOKENS, ignore_eos=True,
                temperature=1, seed=index, stream=True, return_token_ids=True)
    tokens, finish, done = [], None, False
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                continue
            for choice in json.loads(line[6:])["choices"]:
                tokens += choice.get("token_ids") or []
                finish = choice["finish_reason"] or finish
    assert done and finish == "length"
    return tokens


def one_round(server):
    async def run():
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
            return await asyncio.gather(*(stream(http, index) for index in range(STREAMS)))
    return asyncio.run(run())


@pytest.fixture
def touched(tmp_path):
    """A server with few KV blocks, so that a few rounds use all of them."""
    blocks = STREAMS * -(-(TOKENS + 10) // 16) * 5 // 4
    with Server(tmp_path, "--kv-blocks", str(blocks)) as one:
        yield one


def test_rounds_of_64_streams(touched, record_property):
    """Threads and descriptors are as before after each round. Memory grows while a round uses rows
    of KV blocks that none used before it; then it stops. A leak goes on in every round."""
    answers, looks = [], []
    for rounds in range(1, MOST_ROUNDS + 1):
        answers.append(one_round(touched))
        touched.wait_idle()
        # Threads and sockets of ended connections disappear a moment later.
        previous = looks[-1] if looks else None
        if previous is not None:
            wait_until(lambda: (now := touched.look()).descriptors <= previous.descriptors
                       and now.threads <= previous.threads, "descriptors and threads are back")
        else:
            settle(touched)
        looks.append(touched.look())
        if rounds >= 3 and (SANITIZED or grown(looks) <= MOST_GROWTH):
            break
    assert all(len(tokens) == TOKENS for tokens in answers[0])
    # Seeded answers do not depend on other requests.
    assert all(answer == answers[0] for answer in answers)
    assert touched.used_blocks() == 0
    for what in ("threads", "descriptors", "rss_bytes"):
        record_property(f"{what} after each round",
                        ", ".join(str(getattr(look, what)) for look in looks))
    assert looks[-1].threads == looks[-2].threads
    assert looks[-1].descriptors == looks[-2].descriptors
    assert SANITIZED or grown(looks) <= MOST_GROWTH, looks


def grown(looks):
    """The factor by which memory grew in the last round."""
    return looks[-1].rss_bytes / looks[-2].rss_bytes


def settle(server):
    """Waits until threads and descriptors have not changed for half a second."""
    last, since = server.look(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.05)
        now = server.look()
        if (now.threads, now.descriptors) != (last.threads, last.descriptors):
            last, since = now, time.monotonic()


def test_a_long_prompt_does_not_stall_streams(loaded, record_property):
    """While a long prompt is prefilled, each of 8 streams gets a token in every step. At 256 tokens
    a step, 6,000 tokens take 25 steps."""
    arrivals = [[] for _ in range(8)]
    stop = threading.Event()

    def follow(index):
        body = dict(model=MODEL, prompt=f"Tale {index}:", max_tokens=4000, ignore_eos=True,
                    stream=True, return_token_ids=True)
        with httpx.stream("POST", f"{loaded.url}/v1/completions", json=body, timeout=300) as r:
            for line in r.iter_lines():
                if stop.is_set():
                    return
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        arrivals[index] += [time.monotonic()] * len(choice.get("token_ids") or [])

    threads = [threading.Thread(target=follow, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(arrivals), "every stream has begun")
        ids = json.loads((DATA / "text_gpl3_long.json").read_text())["ids"][:LONG_PROMPT]
        assert len(ids) == LONG_PROMPT
        started = time.monotonic()
        loaded.post("/v1/completions", model=MODEL, prompt=ids, max_tokens=1)
        ended = time.monotonic()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    steps = -(-LONG_PROMPT // (256 - 8))
    for times in arrivals:
        during = [t for t in times if started <= t <= ended]
        assert len(during) >= steps - 2, (len(during), steps)
    record_property("steps of the prefill; fewest tokens that a stream got meanwhile",
                    f"{steps}; {min(sum(started <= t <= ended for t in s) for s in arrivals)}")
    # Tokens come steadily: no gap is many times the usual one.
    gaps = [b - a for times in arrivals
            for a, b in zip(times, times[1:]) if started <= a and b <= ended]
    assert max(gaps) < 10 * statistics.median(gaps), (max(gaps), statistics.median(gaps))
    loaded.wait_idle()


def test_a_killed_client_leaves_nothing(loaded):
    program = (
        "import sys, httpx\n"
        "body = dict(model=sys.argv[2], prompt='On and on', max_tokens=4000, ignore_eos=True,"
        " stream=True)\n"
        "with httpx.stream('POST', sys.argv[1] + '/v1/completions', json=body, timeout=300) as r:\n"
        "    for line in r.iter_lines():\n"
        "        print(line, flush=True)\n")
    child = subprocess.Popen([sys.executable, "-c", program, loaded.url, MODEL],
                             stdout=subprocess.PIPE)
    while not child.stdout.readline().startswith(b"data: {"):
        assert child.poll() is None
    assert loaded.used_blocks() > 0
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    loaded.wait_idle()


def test_idle_costs_nothing(loaded, record_property):
    loaded.wait_idle()
    seconds = 60 if LONG else 10
    before, started = loaded.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    used = (loaded.cpu_seconds() - before) / (time.monotonic() - started)
    record_property(f"share of a core over {seconds} s", f"{used:.4%}")
    assert used < 0.01, f"{used:.2%} of a core"


def test_a_full_queue_refuses_at_once(tmp_path):
    with Server(tmp_path, "--queue-requests", "2", "--max-seqs", "2") as small:
        async def ask(http, index):
            return await http.post("/v1/completions", json=dict(
                model=MODEL, prompt=f"Number {index}", max_tokens=64, ignore_eos=True))

        async def run():
            async with httpx.AsyncClient(base_url=small.url, timeout=300) as http:
                return await asyncio.gather(*(ask(http, index) for index in range(24)))

        answers = asyncio.run(run())
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {200, 429}, codes
        for answer in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["type"] == "rate_limit_error"
                assert int(answer.headers["retry-after"]) >= 0
        small.wait_idle()


def test_sigterm_lets_a_request_finish(tmp_path):
    with Server(tmp_path) as one:
        answer = []
        thread = threading.Thread(target=lambda: answer.append(one.post(
            "/v1/completions", model=MODEL, prompt="Hello", max_tokens=100, ignore_eos=True)))
        thread.start()
        wait_until(lambda: one.used_blocks() > 0, "the request runs")
        one.process.send_signal(signal.SIGTERM)
        thread.join()
        assert answer[0]["usage"]["completion_tokens"] == 100
        assert one.process.wait(timeout=30) == 0
