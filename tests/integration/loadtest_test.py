"""`flotilla loadtest` against a server of a known pace, against one of each fault, and against the
real server."""

import asyncio
import collections
import concurrent.futures
import json
import os
import re
import signal
import statistics
import subprocess
import time

import httpx
import numpy as np
import pytest

from flotilla_server import LONG, MODEL, SANITIZED, Server, binary, wait_until
from paced_server import paced_server
from security_files import Authority, write

TTFT_MS, ITL_MS = 150, 20


@pytest.fixture(scope="module", name="paced")
def a_paced_server():
    with paced_server(TTFT_MS, ITL_MS) as url:
        yield url


def loadtest(url, *flags, model="paced", check=True, environment=None, seconds=120):
    done = subprocess.run([binary(), "loadtest", url, "--model", model, *map(str, flags)],
                          capture_output=True, text=True, timeout=seconds,
                          env={**os.environ, **(environment or {})})
    assert not check or done.returncode == 0, done.stderr
    return done


def run(url, tmp_path, *flags, **options):
    """The runs of --json."""
    loadtest(url, *flags, "--json", tmp_path / "run.json", **options)
    return json.loads((tmp_path / "run.json").read_text())["runs"]


async def measure(url, model, users, requests, tokens):
    """TTFT and ITL in ms and tokens per second, as the benchmarks' client measures them: from before
    the connection to the first event with content, and between such events."""
    host, port = url.removeprefix("http://").split(":")
    ttft, itl, left = [], [], [requests]

    async def user():
        while left[0] > 0:
            left[0] -= 1
            body = json.dumps({
                "model": model, "stream": True, "max_tokens": tokens, "ignore_eos": True,
                "messages": [{"role": "user", "content": "time year people way day " * 25}]})
            started, last = time.perf_counter(), None
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write((f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
                          f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}").encode())
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    now = time.perf_counter()
                    if last is None:
                        ttft.append(now - started)
                    else:
                        itl.append(now - last)
                    last = now
            writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    seconds = time.perf_counter() - started
    return (1000 * statistics.median(ttft), 1000 * statistics.mean(itl),
            requests * tokens / seconds)


def test_figures_are_those_of_the_pace_and_of_another_client(paced, tmp_path):
    """Within 2 %. A machine that does other work gets five tries."""
    for attempt in range(5):
        other = asyncio.run(measure(paced, "paced", 2, 6, 25))
        (one,) = run(paced, tmp_path, "--concurrency", 2, "--requests", 6, "--output", 25)
        assert one["requests"] == one["finished"] == 6 and one["failed"] == 0
        assert one["output_tokens"] == 150 and one["itl_ms"]["count"] == 144
        ours = one["ttft_ms"]["p50"], one["itl_ms"]["mean"], one["output_tokens_per_s"]
        # The pace of the first token leaves out the connection, which is some milliseconds.
        pace = ours[0], ITL_MS, 2 * 25 / (1e-3 * (ours[0] + 24 * ITL_MS))
        close = [abs(a - b) <= 0.02 * b for a, b in zip(ours * 2, other + pace)]
        paced_too = TTFT_MS <= ours[0] < TTFT_MS + 10 and one["tpot_ms"]["p50"] == pytest.approx(
            ITL_MS, rel=0.02)
        if all(close) and paced_too:
            return
    raise AssertionError(f"{ours} is neither {other} nor {pace}, in {attempt + 1} tries")


@pytest.mark.skipif(SANITIZED, reason="a sanitizer takes most of the time")
def test_it_takes_a_tenth_of_a_core_at_a_thousand_tokens_a_second(paced, tmp_path):
    (one,) = run(paced, tmp_path, "--concurrency", 24, "--requests", 24, "--output", 80)
    assert one["output_tokens"] == 24 * 80 and one["output_tokens_per_s"] > 700
    assert one["cpu_share"] * 1000 / one["output_tokens_per_s"] < 0.1


@pytest.mark.skipif(not LONG or SANITIZED, reason="it takes a minute, and a machine of its own")
def test_figures_of_the_real_server_are_those_of_another_client(tmp_path):
    """Medians of five turns, in which the two measure one after the other, are within 10 %."""
    with Server(tmp_path, "--prefix-cache", "off") as server:
        ours, others = [], []
        for _ in range(5):
            others.append(asyncio.run(measure(server.url, MODEL, 2, 16, 48)))
            (one,) = run(server.url, tmp_path, "--concurrency", 2, "--requests", 16, "--prompt", 125,
                         "--output", 48, model=MODEL)
            assert one["finished"] == 16 and one["output_tokens"] == 16 * 48
            ours.append((one["ttft_ms"]["p50"], one["itl_ms"]["mean"], one["output_tokens_per_s"]))
    pairs = list(zip(*([statistics.median(figures) for figures in zip(*turns)]
                       for turns in (ours, others))))
    print("TTFT, ITL, tokens a second, of ours and of the other:", pairs)
    for our, other in pairs:
        assert our == pytest.approx(other, rel=0.1)


@pytest.mark.parametrize("model, reason", [
    ("busy", "HTTP 503 queue_full"), ("cut", "connection cut"), ("stall", "timeout"),
    ("garbage", "bad stream"), ("not_http", "bad HTTP: bad version"),
    ("error_event", "error in the stream: worker_lost"), ("no_reason", "connection cut")])
def test_failures_have_their_reason(paced, tmp_path, model, reason):
    done = loadtest(paced, "--requests", 2, "--output", 3, "--timeout", 1, "--json",
                    tmp_path / "run.json", model=model, check=False)
    (one,) = json.loads((tmp_path / "run.json").read_text())["runs"]
    assert one["failures"] == {reason: 2} and one["failed"] == 2 and one["good_share"] == 0
    assert done.returncode == 1 and f"every request failed: {reason}" in done.stderr


def test_a_server_that_is_not_there(tmp_path):
    done = loadtest("http://127.0.0.1:1", "--requests", 2, check=False)
    assert done.returncode == 1 and "every request failed: connection refused" in done.stderr


@pytest.mark.parametrize("in_flight", [1, 100])
def test_an_open_loop_counts_from_when_requests_were_due(tmp_path, in_flight):
    """The server takes 50 ms for a request, and 40 a second arrive: the last waits for a second. It
    makes no difference whether it waits in the server or here."""
    with paced_server(50, 0, slots=1) as url:
        (one,) = run(url, tmp_path, "--arrivals", "constant", "--rate", 40, "--requests", 40,
                     "--output", 1, "--max-in-flight", in_flight, "--slo-ttft", 520)
    # At the least 40 times 50 ms, less 39 times 25 ms until it arrives.
    assert 1020 < one["ttft_ms"]["max"] < 2000
    assert 0.1 < one["good_share"] < 0.7
    assert one["offered_per_s"] == pytest.approx(40, rel=0.01)
    assert (one["send_lag_ms"]["max"] > 500) == (in_flight == 1)


def seen(url):
    """The requests that the server got."""
    return httpx.get(f"{url}/seen").json()


def test_requests_are_those_that_the_flags_say(tmp_path):
    key = write(tmp_path / "key", "secret-key\n")
    with paced_server(1, 0) as url:
        for _ in range(2):
            loadtest(url, "--requests", 3, "--concurrency", 1, "--prompt", 50, "--output", 4,
                     "--prefix-share", 0.5, "--api-key-file", key, "--extra-body", '{"top_p": 0.5}')
        loadtest(url, "--requests", 2, "--turns", 2, "--completions", "--stop-at-eos",
                 environment={"OPENAI_API_KEY": "other"})
        loadtest(url, "--requests", 3, "--turns", 3, "--prompt", 2, "--output", 2)
        bodies = seen(url)
    chats, completions, turns = bodies[:6], bodies[6:8], bodies[8:]
    prompts = [body["messages"][0]["content"].split() for body in chats]
    assert prompts[:3] == prompts[3:], "the same flags send the same requests"
    assert all(len(words) == 50 and words[:25] == prompts[0][:25] for words in prompts)
    assert prompts[0][25:] != prompts[1][25:]
    assert {body["key"] for body in chats} == {"Bearer secret-key"}
    assert all(body["ignore_eos"] and body["max_tokens"] == 4 and body["top_p"] == 0.5
               for body in chats)
    assert [body["route"] for body in completions] == ["/v1/completions"] * 2
    assert completions[0]["key"] == "Bearer other" and "ignore_eos" not in completions[0]
    assert completions[1]["prompt"].startswith(completions[0]["prompt"] + "  t0 t1")
    assert [len(body["messages"]) for body in turns] == [1, 3, 5]
    assert turns[2]["messages"][1] == {"role": "assistant", "content": " t0 t1"}
    assert turns[2]["messages"][:3] == turns[1]["messages"]


def test_a_trace_is_replayed(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(
        json.dumps({"timestamp": 400 * i, "input_length": 600, "output_length": 2 + i,
                    "hash_ids": [7, i]}) + "\n" for i in range(3)))
    with paced_server(1, 0) as url:
        (one,) = run(url, tmp_path, "--trace", trace, "--speed", 2, "--predict", "this-cpu")[:1]
        bodies = seen(url)
    assert 0.4 <= one["seconds"] < 2 and one["offered_per_s"] == pytest.approx(5, rel=0.01)
    assert [body["max_tokens"] for body in bodies] == [2, 3, 4]
    words = [body["messages"][0]["content"].split() for body in bodies]
    assert words[0][:512] == words[1][:512] and words[0][512:] != words[1][512:]


def test_rates_of_a_sweep_are_those_of_the_flag(tmp_path):
    """Two slots of 100 ms serve 20 requests a second."""
    with paced_server(100, 0, slots=2) as url:
        done = loadtest(url, "--sweep-rate", "5,40", "--duration", 0.8, "--output", 1, "--slo-ttft",
                        300, "--predict", "this-cpu", "--report", tmp_path / "sweep.html", "--json",
                        tmp_path / "sweep.json")
    assert "knee: 5/s, simulated: " in done.stdout
    runs = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert [one["label"] for one in runs] == ["5/s", "40/s", "5/s simulated", "40/s simulated"]
    assert runs[0]["good_share"] >= 0.9 > runs[1]["good_share"]
    page = (tmp_path / "sweep.html").read_text()
    assert "Over the offered load" in page and "<script" not in page and "href=" not in page


@pytest.mark.skipif(not LONG, reason="it takes a quarter of a minute")
def test_the_knee_is_that_of_the_simulator(tmp_path):
    """Steps of 20 ms with at most 4 sequences: a request of 8 tokens takes 160 ms, and 25 requests a
    second are the most. The stand-in and a machine of the simulator are such servers."""
    (tmp_path / "machine.json").write_text(json.dumps({
        "name": "paced", "kind": "linear", "step_ns": 20e6, "kv_tokens": 65536, "max_seqs": 4,
        "max_step_tokens": 4096}))
    with paced_server(20, 20, slots=4) as url:
        for _ in range(3):
            done = loadtest(url, "--sweep", "--rate", 18, "--duration", 2, "--prompt", 8, "--output",
                            8, "--slo-ttft", 250, "--predict", tmp_path / "machine.json")
            knee, predicted = map(float, re.search(
                r"knee: (.*)/s, simulated: (.*)/s", done.stdout).groups())
            if 10 < knee < 30 and knee == pytest.approx(predicted, rel=0.2):
                return
    raise AssertionError(done.stdout)


class StepTimes:
    """How long the steps of a server take, by its own counters while it has a load."""

    PREFIX = "flotilla_scheduler_step_"
    SHAPE = ("--completions", "--prompt", 16)

    def __init__(self, server):
        self.server, self.means = server, []

    def counted(self):
        of = self.server.metric
        return np.array([of(self.PREFIX + "duration_seconds_count"),
                         of(self.PREFIX + "tokens_sum", kind="prefill"),
                         of(self.PREFIX + "tokens_sum", kind="decode"),
                         1e9 * of(self.PREFIX + "duration_seconds_sum")])

    def measure(self, users, requests, tokens):
        """Keeps the means of a load's steps: 1, prefill rows, decode rows, ns. Returns its rate."""
        before, start = self.counted(), time.perf_counter()
        loadtest(self.server.url, *self.SHAPE, "--concurrency", users, "--requests", requests,
                 "--output", tokens, model=MODEL)
        seconds, more = time.perf_counter() - start, self.counted() - before
        self.means.append(more / more[0])
        return requests / seconds

    def write_machine(self, path):
        """The simulator's machine: a linear one, fitted by least squares of relative errors. Its
        rows have what their context costs, because all requests are of one shape."""
        *rows, ns = np.array(self.means).T
        costs = np.linalg.lstsq((rows / ns).T, np.ones(len(ns)), rcond=None)[0]
        names = ("step_ns", "prefill_row_ns", "decode_row_ns")
        path.write_text(json.dumps({
            "name": "server", "kind": "linear", "kv_tokens": 65536, "max_seqs": 64,
            "max_step_tokens": 256, **dict(zip(names, np.maximum(costs, 0)))}))


@pytest.mark.skipif(not LONG or SANITIZED, reason="it takes minutes, and a machine of its own")
def test_the_knee_of_the_real_server_is_that_of_the_simulator(tmp_path):
    """Within 20 %, from step times of this server. A machine that does other work gets three tries."""
    knees = []
    with Server(tmp_path, "--prefix-cache", "off") as server:
        for _ in range(3):
            times = StepTimes(server)
            for users, requests, tokens in ((1, 24, 1), (1, 24, 8), (4, 48, 8), (16, 96, 8)):
                times.measure(users, requests, tokens)
            rate = times.measure(48, 144, 8)
            times.write_machine(tmp_path / "machine.json")
            done = loadtest(server.url, *times.SHAPE, "--sweep", "--rate", round(0.7 * rate, 2),
                            "--duration", 12, "--output", 8, "--slo-ttft", 2000, "--slo-itl", 0,
                            "--predict", tmp_path / "machine.json", model=MODEL, seconds=300)
            print(done.stdout)
            knees.append([float(one) for one in re.search(
                r"knee: (.*)/s, simulated: (.*)/s", done.stdout).groups()])
            if knees[-1][0] == pytest.approx(knees[-1][1], rel=0.2):
                return
    raise AssertionError(f"the knee and the simulator's: {knees}")


def test_runs_are_compared(paced, tmp_path):
    for name, output in (("before", 5), ("after", 10)):
        loadtest(paced, "--requests", 2, "--output", output, "--label", f"<{name}>", "--json",
                 tmp_path / f"{name}.json")
    done = subprocess.run(
        [binary(), "loadtest", "--compare", f"{tmp_path}/before.json,{tmp_path}/after.json",
         "--report", tmp_path / "both.html"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "+100.0 %" in done.stdout and "change" in done.stdout
    page = (tmp_path / "both.html").read_text()
    assert "&lt;before&gt;" in page and "<before>" not in page and page.count("<svg") >= 8


def test_a_signal_ends_the_test_with_its_figures(paced, tmp_path):
    words = [binary(), "loadtest", paced, "--model", "paced", "--concurrency", "2", "--requests",
             "100000", "--output", "3", "--json", str(tmp_path / "run.json")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        wait_until(lambda: len(seen(paced)) > 0 and seen(paced)[-1]["max_tokens"] == 3, "a request")
        one.send_signal(signal.SIGINT)
        out, err = one.communicate(timeout=30)
    assert one.returncode == 0 and "TTFT" in out, err
    (result,) = json.loads((tmp_path / "run.json").read_text())["runs"]
    assert 0 < result["requests"] == result["finished"] < 1000


def test_a_second_signal_cancels_what_is_under_way(paced, tmp_path):
    words = [binary(), "loadtest", paced, "--model", "stall", "--concurrency", "3", "--requests",
             "100", "--output", "4321", "--json", str(tmp_path / "run.json")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        wait_until(lambda: sum(body["max_tokens"] == 4321 for body in seen(paced)) == 3, "requests")
        one.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.3)  # those under way are waited for
        one.send_signal(signal.SIGINT)
        _, err = one.communicate(timeout=30)
    assert one.returncode == 1 and "every request failed: cancelled" in err
    (result,) = json.loads((tmp_path / "run.json").read_text())["runs"]
    assert result["requests"] == 3 and result["failures"] == {"cancelled": 3}


def test_https_trusts_whom_it_is_told_to(tmp_path):
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server")
    with paced_server(1, 0, certificate=certificate, key=key) as url:
        address = url.replace("http:", "https:")
        done = loadtest(address, "--requests", 1, check=False)
        assert done.returncode == 1 and "TLS: certificate verify failed" in done.stderr
        for flags in (["--ca-file", authority.certificate], ["--insecure-tls"]):
            (one,) = run(address, tmp_path, "--requests", 1, *flags)
            assert one["finished"] == 1


def test_connections_are_kept_where_the_flag_says_so(tmp_path):
    with paced_server(1, 0) as url:
        def connections(*flags):
            before = httpx.get(f"{url}/connections").json()
            run(url, tmp_path, "--requests", 12, "--concurrency", 3, "--output", 2, *flags)
            return httpx.get(f"{url}/connections").json() - before - 1

        assert connections() == 12
        assert connections("--keep-alive") == 3


def test_a_refused_request_leaves_its_connection_to_the_next(tmp_path):
    with paced_server(1, 0) as url:
        loadtest(url, "--requests", 6, "--concurrency", 1, "--keep-alive", model="busy",
                 check=False)
        assert len(seen(url)) == 6 and httpx.get(f"{url}/connections").json() == 3


def test_a_connection_that_the_server_closes_between_requests_fails_nobody(tmp_path):
    """The server closes it after the next request has been sent: that one is sent again, once, so
    each connection has one answer."""
    with paced_server(1, 0) as url:
        (one,) = run(url, tmp_path, "--requests", 6, "--concurrency", 1, "--output", 2,
                     "--keep-alive", model="forgetful")
        assert one["finished"] == 6 and len(seen(url)) == 6
        assert httpx.get(f"{url}/connections").json() == 6 + 2


def test_kept_connections_have_tls(tmp_path):
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server")
    with paced_server(1, 0, certificate=certificate, key=key) as url:
        address = url.replace("http:", "https:")
        (one,) = run(address, tmp_path, "--requests", 6, "--concurrency", 1, "--keep-alive",
                     "--ca-file", authority.certificate)
        assert one["finished"] == 6
        assert httpx.get(f"{address}/connections", verify=False).json() == 2


@pytest.mark.parametrize("flags, said", [
    (["--arrivals", "poisson"], "--arrivals poisson needs --rate"),
    (["--arrivals", "closed", "--rate", "3"], "--arrivals closed has no rate"),
    (["--prompt", "0"], "--prompt: a length must be a whole number"),
    (["--trace", "none.csv"], "cannot open none.csv"),
    (["--extra-body", "[]"], "must be a JSON object"),
    (["--grpc", "--keep-alive"], "gRPC has no --keep-alive"),
    (["--predict", "this-cpu", "--turns", "2"], "--predict cannot be used with --turns"),
    (["--predict", "nobody"], "nobody")])
def test_flags_that_cannot_be_used_are_told(flags, said):
    done = loadtest("http://127.0.0.1:1", *flags, check=False)
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1


def test_the_real_server(server, tmp_path):
    (one,) = run(server.url, tmp_path, "--concurrency", 2, "--requests", 4, "--prompt", 20,
                 "--output", 8, model=MODEL)
    assert one["finished"] == 4 and one["output_tokens"] == 32 and one["failed"] == 0
    assert 4 * 20 < one["prompt_tokens"] < 4 * 100
    assert one["ttft_ms"]["p50"] > one["itl_ms"]["p50"] > 0
    (one,) = run(server.url, tmp_path, "--requests", 1, "--completions", "--output", 4, model=MODEL)
    assert one["finished"] == 1 and one["output_tokens"] == 4


class OtherClients:
    """Clients that are refused, and clients that leave in the middle of a stream, while the load test
    runs. `log` has what they saw."""

    # Reasons as the server counts them.
    REFUSED = (("invalid", 400, {"temperature": 9}), ("invalid", 400, {"max_tokens": "x"}),
               ("invalid", 404, {"model": "nobody"}), ("too_long", 400, {"max_tokens": 8192}))
    PROMPT_TOKENS, SEEN_TOKENS, TOKENS = 100, 5, 2000

    def __init__(self, url):
        self.url, self.log = url, collections.Counter()

    def body(self, number, **more):
        prompt = [1000 + 7 * number, *range(2000, 1999 + self.PROMPT_TOKENS)]
        return {"model": MODEL, "prompt": prompt, "max_tokens": self.TOKENS, "ignore_eos": True, **more}

    def refused(self, times):
        for reason, status, fault in self.REFUSED * times:
            answer = httpx.post(f"{self.url}/v1/completions", json=self.body(0, **fault), timeout=60)
            assert answer.status_code == status, answer.text
            self.log[reason] += 1

    def cancelled(self, times):
        for number in range(times):
            began, seen = time.perf_counter(), 0
            with httpx.stream("POST", f"{self.url}/v1/completions", timeout=60, json=self.body(
                    number, stream=True, return_token_ids=True)) as answer:
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    tokens = len(json.loads(line[6:])["choices"][0]["token_ids"])
                    if tokens and not seen:
                        self.log["ttft"] += time.perf_counter() - began
                    seen += tokens
                    if seen >= self.SEEN_TOKENS:
                        break  # leaves
            self.log["client"] += 1


def test_a_server_counts_what_its_clients_see(server, tmp_path):
    """Requests, refusals, cancellations, and the tokens of those that ended exactly, and TTFT within 5 %:
    server and clients are one machine."""
    series = {"requests": ("requests_total", {}), "prompt": ("prompt_tokens_sum", {}),
              "output": ("output_tokens_sum", {}), "rejected": ("rejected_total", {}),
              "invalid": ("rejected_total", {"reason": "invalid"}),
              "too_long": ("rejected_total", {"reason": "too_long"}),
              "cancelled": ("cancelled_total", {}), "client": ("cancelled_total", {"by": "client"}),
              "answers": ("time_to_first_token_seconds_count", {}),
              "ttft": ("time_to_first_token_seconds_sum", {})}

    def counted():
        return {key: server.metric("flotilla_router_" + name, **labels)
                for key, (name, labels) in series.items()}

    before, others = counted(), OtherClients(server.url)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        beside = [pool.submit(others.refused, 3), pool.submit(others.cancelled, 4)]
        (one,) = run(server.url, tmp_path, "--concurrency", 4, "--requests", 24, "--prompt", 400,
                     "--output", 8, model=MODEL)
        for each in beside:
            each.result()
    wait_until(lambda: server.metric("flotilla_router_requests_in_flight") == 0, "none is in flight")
    more = {key: value - before[key] for key, value in counted().items()}
    log = others.log
    assert (one["finished"], log["invalid"], log["too_long"], log["client"]) == (24, 9, 3, 4)
    assert more["answers"] == one["finished"] + log["client"]
    # That one is too long is known when its prompt has been tokenized: it has begun by then.
    assert more["requests"] == more["answers"] + log["too_long"]
    assert {reason: more[reason] for reason in ("invalid", "too_long", "client")} == {
        reason: log[reason] for reason in ("invalid", "too_long", "client")}
    assert (more["rejected"], more["cancelled"]) == (log["invalid"] + log["too_long"], log["client"])
    assert (more["prompt"], more["output"]) == (one["prompt_tokens"], one["output_tokens"])
    ttft_ms = (24 * one["ttft_ms"]["mean"] + 1000 * log["ttft"]) / more["answers"]
    assert more["ttft"] / more["answers"] * 1000 == pytest.approx(ttft_ms, rel=0.05)


def test_the_real_server_by_grpc(server, tmp_path):
    flags = ["--grpc", "--requests", 4, "--concurrency", 2, "--prompt", 20, "--output", 8]
    (one,) = run(server.grpc_address, tmp_path, *flags, "--turns", 2, model=MODEL)
    assert one["finished"] == 4 and one["output_tokens"] == 32 and one["failed"] == 0
    assert one["ttft_ms"]["p50"] > one["itl_ms"]["p50"] > 0
    done = loadtest(server.grpc_address, *flags, "--completions", model="nobody", check=False)
    assert "every request failed: gRPC NOT_FOUND model_not_found" in done.stderr
    done = loadtest("127.0.0.1:1", *flags, check=False)
    assert "every request failed: gRPC UNAVAILABLE" in done.stderr
    done = loadtest(server.grpc_address, *flags, "--timeout", 0.001, model=MODEL, check=False)
    assert "every request failed: timeout" in done.stderr
