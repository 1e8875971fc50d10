"""More requests than the server can serve: which ones it serves, and how it refuses the rest.

Rates are multiples of what the server manages here and now, since other work may
share the machine.
"""

import asyncio
import dataclasses
import random
import re
import statistics
import time

import httpx
import pytest

from flotilla_server import LONG, MODEL, SANITIZED, Server

pytestmark = pytest.mark.skipif(SANITIZED, reason="measures time")

PROMPT_TOKENS = 24


@dataclasses.dataclass
class Outcome:
    """The outcome of one request; times are in seconds."""

    status: int
    sent: float
    ttft: float | None = None  # of a request that was answered
    total: float = 0
    retry_after: int | None = None
    retry_after_ms: int | None = None
    message: str = ""


def body_of(index, tokens):
    rng = random.Random(index)
    prompt = [rng.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)]
    return dict(model=MODEL, prompt=prompt, max_tokens=tokens, ignore_eos=True, stream=True,
                temperature=0)


async def ask(http, body):
    started = time.monotonic()
    outcome = Outcome(status=0, sent=started)
    async with http.stream("POST", "/v1/completions", json=body) as response:
        outcome.status = response.status_code
        if response.status_code == 200:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    outcome.ttft = outcome.ttft or time.monotonic() - started
                    if '"error"' in line:  # too late to change the status
                        outcome.status = 504
        else:
            error = (await response.aread()).decode()
            outcome.message = error
            for name in ("retry_after", "retry_after_ms"):
                value = response.headers.get(name.replace("_", "-"))
                setattr(outcome, name, int(value) if value else None)
    outcome.total = time.monotonic() - started
    return outcome


def with_client(server, work):
    """Runs work(client) to its end."""
    async def run():
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
            return await work(http)
    return asyncio.run(run())


def open_loop(server, rate, seconds, body, seed):
    """Poisson arrivals, which do not wait for answers; body(i, rng) is the body of request i."""
    async def work(http):
        rng, tasks = random.Random(seed), []
        start = at = time.monotonic()
        while at < start + seconds:
            await asyncio.sleep(max(0, at - time.monotonic()))
            tasks.append(asyncio.create_task(ask(http, body(len(tasks), rng))))
            at += rng.expovariate(rate)
        return await asyncio.gather(*tasks)
    return with_client(server, work)


def capacity(server, clients, requests, tokens):
    """Requests per second of a closed loop that keeps every place taken. It is the best of
    three tries, because other work on the machine only lowers it."""
    async def work(http):
        left = iter(range(requests))

        async def client():
            for index in left:
                await ask(http, body_of(1_000_000 + index, tokens(random.Random(index))))
        started = time.monotonic()
        await asyncio.gather(*(client() for _ in range(clients)))
        return requests / (time.monotonic() - started)
    return max(with_client(server, work) for _ in range(3))


def latency_alone(server, tokens):
    async def work(http):
        return [(await ask(http, body_of(2_000_000 + i, tokens))).total for i in range(5)]
    return statistics.median(with_client(server, work))


SHORT, LONGEST = 6, 24


def some_tokens(rng):
    return rng.randint(SHORT, LONGEST)


@pytest.mark.skipif(not LONG, reason="only with FLOTILLA_LONG=1: a ratio of times")
def test_earliest_deadline_meets_more(tmp_path, record_property):
    """At twice the load that can be served, with deadlines of 2 to 10 times the
    unloaded latency."""
    flags = ("--max-seqs", "3", "--queue-requests", "512")
    seconds = 20  # many times the longest deadline
    rounds = []  # {policy: deadlines met}
    for policy in ("fcfs", "edf"):
        (tmp_path / policy).mkdir()
    with Server(tmp_path / "fcfs", "--policy", "fcfs", *flags) as fcfs, \
            Server(tmp_path / "edf", "--policy", "edf", *flags) as edf:
        for number in range(3):  # the machine may be busy; one good round is enough
            rate = 2 * max(capacity(server, 6, 40, some_tokens) for server in (fcfs, edf))
            fast, slow = latency_alone(fcfs, SHORT), latency_alone(fcfs, LONGEST)

            def body(index, rng):
                tokens = some_tokens(rng)
                alone = fast + (slow - fast) * (tokens - SHORT) / (LONGEST - SHORT)
                timeout_ms = round(1000 * alone * rng.uniform(2, 10))
                return dict(body_of(1000 * number + index, tokens), timeout_ms=timeout_ms)

            rounds.append({})
            for policy, server in (("fcfs", fcfs), ("edf", edf)):
                outcomes = open_loop(server, rate, seconds, body, seed=number)
                assert {o.status for o in outcomes} <= {200, 504}, outcomes
                rounds[-1]["sent"] = len(outcomes)
                rounds[-1][policy] = sum(o.status == 200 for o in outcomes)
                server.wait_idle()
            if rounds[-1]["edf"] >= 1.5 * rounds[-1]["fcfs"]:
                break
    record_property("deadlines met, by round", str(rounds))
    assert rounds[-1]["edf"] >= 1.5 * rounds[-1]["fcfs"], rounds


MAX_WAIT_MS = 1000
TOKENS = 48
LOADS = (0.5, 1, 1.5, 5)


def good(outcomes, bound):
    return [o for o in outcomes if o.status == 200 and o.ttft <= bound]


@pytest.mark.skipif(not LONG, reason="only with FLOTILLA_LONG=1")
def test_overload_keeps_goodput(tmp_path, record_property):
    """At five times the capacity, as many requests as at the best rate get their
    first token in time. The server refuses the others at once."""
    rounds, seconds = 3, 10
    with Server(tmp_path, "--max-seqs", "4", "--max-wait-ms", str(MAX_WAIT_MS)) as server:
        goodput, refused = {load: [] for load in LOADS}, []
        for number in range(rounds):  # each round is one sweep, because other load changes slowly
            peak = capacity(server, 5, 20, lambda _: TOKENS)
            # The wait allowed, half as much again for what was predicted wrongly,
            # and the prompt's own step among others.
            bound = 1.5 * MAX_WAIT_MS / 1000 + 5 * latency_alone(server, 1)
            for load in LOADS:
                first = 100_000 * number + int(10_000 * load)
                outcomes = open_loop(server, load * peak, seconds,
                                     lambda index, _: body_of(first + index, TOKENS), seed=first)
                server.wait_idle()
                assert {o.status for o in outcomes} <= {200, 429}
                goodput[load].append(len(good(outcomes, bound)) / seconds / peak)
                if load == LOADS[-1]:
                    refused += [o for o in outcomes if o.status == 429]
    means = {load: statistics.mean(shares) for load, shares in goodput.items()}
    record_property("goodput at 0.5, 1, 1.5 and 5 times the capacity, over the capacity",
                    ", ".join(f"{mean:.2f}" for mean in means.values()))
    check_refusals(refused, record_property)
    assert means[5] >= 0.8 * max(means.values()), goodput


def check_refusals(refused, record_property):
    """Each refusal has the predicted wait, in the message and in the hint for the client."""
    assert refused
    for outcome in refused:
        predicted_ms = int(re.search(r"the wait would be about (\d+) ms", outcome.message)[1])
        assert predicted_ms >= MAX_WAIT_MS
        assert abs(outcome.retry_after_ms - predicted_ms) <= 1
        assert outcome.retry_after == -(-outcome.retry_after_ms // 1000)
    answered_ms = 1000 * statistics.median(o.total for o in refused)
    record_property("refused: Retry-After, ms (median, most); answered after, ms",
                    f"{statistics.median(o.retry_after_ms for o in refused):.0f}, "
                    f"{max(o.retry_after_ms for o in refused)}; {answered_ms:.0f}")
