"""Chaos on real processes: a member of a fleet is killed, stopped or ended, or exits, while 16
clients stream. No accepted answer is lost or altered, no token comes twice, and nobody waits long
for the next token. When a router dies, its connections end, and its clients get the same answers
from the other router.

The load resembles use: some prompts are long (200 tokens; in one test two of them have 2,000, and
four with FLOTILLA_LONG=1), the KV pool has a quarter of the blocks that all requests would need,
behind it is memory of the host, n-grams are drafted, and clients set deadlines and stop strings. A
quarter of the clients send only after the fault.

Two more clients send after the fault and have little time. Each gets all of its answer, or the
error of its deadline when the time has passed, whatever is out of service then.

A fault is a process, a signal and a phase of the clients' requests. Every tenth of all
combinations is tried; with FLOTILLA_LONG=1 all of them are tried, and some again. Some faults
hit a scheduler that runs its group itself.
"""

import collections
import concurrent.futures
import itertools
import os
import random
import re
import signal
import threading
import time

import httpx
import pytest

from fleet_test import PROMPTS, Stream
from flotilla_server import LONG, MODEL, SANITIZED, Replicas, shared_library, wait_until

pytestmark = pytest.mark.skipif(SANITIZED, reason="its limits are times")

CLIENTS = 16
LATE = (2, 7, 9, 12)  # a beam search and a long prompt among them
TOKENS = 60 if LONG else 40
PROCESSES = ("router0", "scheduler0", "worker0", "mpirun", "rank 0", "rank 1")
FRONT = ("router0", "scheduler0")  # while one is gone, new requests are refused
EXIT = signal.SIGRTMIN  # exit.c
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, EXIT)
PHASES = ("arrival", "prefill", "decode", "end")
FAULTS = list(itertools.product(PROCESSES, SIGNALS, PHASES))
BEHIND_LONG = ("rank 0", signal.SIGKILL, "prefill")
SEED = int(os.environ.get("FLOTILLA_CHAOS_SEED", "1"))
# The tokens of the long prompts of clients 0, 4, 8 and 12, and how long a client waits for a token
# at most while two idle cores compute such a load without a fault (docs/architecture.md, "A worker
# group").
SHORT, MIXED, LONGEST = (200,) * 4, (200, 200, 2000, 2000), (2000,) * 4
PLAIN_S = {SHORT: 4, MIXED: 10, LONGEST: 16}
# A fault is noticed, and the group is ready again, within these times. A machine that takes longer
# than PLAIN_S has more time, in proportion.
DETECTED_S, READY_S = 2, 5
# A request whose deadline passes ends so much later at most. While its scheduler or its router is
# gone, that must be noticed first.
ENDED_S = 0.3
HURRY_S = 0.2  # of a client whose time is over before the group is ready again
# A client gives up a connection that brings nothing. This only ends a test that fails.
PATIENCE_S = 240


def chosen(processes, count):
    """Chooses faults evenly, so that each process, signal and phase comes about equally often."""
    if count >= len(FAULTS):
        return FAULTS + random.Random(SEED).sample(FAULTS, count - len(FAULTS))
    # Steps of a Latin square: 10 faults have every process and signal.
    return [(processes[i % len(processes)], SIGNALS[(i + i // 4) % 4], PHASES[(i + i // 3) % 4])
            for i in range(count)]


def bodies(long_prompts=SHORT):
    """Requests that are greedy, seeded by their name, with several choices, log-probabilities,
    penalties and beams."""
    for i in range(CLIENTS):
        body = dict(model=MODEL, prompt=f"{PROMPTS[i % len(PROMPTS)]} {i}", max_tokens=TOKENS,
                    ignore_eos=True, temperature=0 if i % 3 == 0 else 0.8, n=2 if i % 5 == 1 else 1,
                    logprobs=1 if i % 4 == 2 else None, return_token_ids=True)
        if i % 5 == 3:
            body |= dict(repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.3,
                         logit_bias={"260": -2}, dry_multiplier=0.8)
        if i % 8 == 7:
            body |= dict(use_beam_search=True, best_of=3, n=2, temperature=0, logprobs=None)
        if i % 4 == 0:  # two by two they begin alike
            words = random.Random(i // 8).choices(range(1000, 40000), k=long_prompts[i // 4] - 1)
            body["prompt"] = [*words, 1000 + i]
        if i % 3 == 1:
            body["timeout_ms"] = 1000 * PATIENCE_S
        if i % 5 == 4:
            body |= dict(stop=[".", " and"], min_tokens=TOKENS // 2)
        yield body


def needed_blocks(body):
    """The blocks that the request would use at its end if it shared none."""
    prompt = body["prompt"]
    tokens = len(prompt) if isinstance(prompt, list) else len(prompt) // 4
    return max(body["n"], body.get("best_of", 1)) * -(-(tokens + TOKENS) // 16)


def chaos_fleet(directory, long_prompts=SHORT, **more):
    """A fleet whose pool has a quarter of the blocks that the load needs. It has half of them where
    a quarter is less than the largest request needs."""
    needed = [needed_blocks(body) for body in bodies(long_prompts)]
    quarter = sum(needed) // 4
    blocks = quarter if quarter > max(needed) else 2 * quarter
    return Replicas(directory, models=(MODEL,), routers=2, kv_blocks=blocks, **more,
                    worker=("--tp", "2", "--host-blocks", "256", "--speculation", "ngram"))


class TimedStream(Stream):
    """A stream that knows the longest time that passed between two of its tokens, and until the
    first one."""

    def __init__(self, url, body, since):
        super().__init__(url, body)
        self.last, self.pause = since, 0

    def take(self, choice):
        super().take(choice)
        now = time.monotonic()
        self.pause = max(self.pause, now - self.last)
        self.last = now


class Client:
    """One request, which the client sends when `begin` is set, and again with the same id when its
    router dies."""

    def __init__(self, fleet, number, body, begin):
        self.fleet, self.body, self.begin = fleet, body, begin
        self.request_id = f"chaos-{number}"
        self.router = number % 2
        self.retries = 0
        self.stream = None

    @property
    def pause(self):
        """The longest wait for a token. The tokens of a beam search come all at once."""
        return 0 if self.body.get("use_beam_search") else self.stream.pause

    def run(self):
        assert self.begin.wait(PATIENCE_S)
        since = time.monotonic()
        give_up = since + 3 * PATIENCE_S
        parts = []
        while True:
            self.stream = TimedStream(self.fleet.url(self.router), self.body, since)
            try:
                self.stream.run(headers={"x-request-id": self.request_id}, timeout=PATIENCE_S)
                break
            except (httpx.TransportError, AssertionError) as error:
                refused = isinstance(error, AssertionError) and "503" in str(error)
                assert refused or isinstance(error, httpx.TransportError), error
                assert time.monotonic() < give_up, "no answer"
                parts.append(self.stream.tokens)
                since = self.stream.last
                self.retries += not refused
                self.router = 1 - self.router
                time.sleep(0.05)
        for part in parts:  # earlier tries gave the same answer
            for choice, tokens in part.items():
                assert self.stream.tokens[choice][:len(tokens)] == tokens
        return self.stream.answer()


class HurriedClient(Client):
    """A client that sends after the fault and, if `seconds` are given, wants its answer within
    these. While it is refused it tries again for as long as it has time."""

    def __init__(self, fleet, number, begin, seconds):
        body = dict(model=MODEL, prompt=f"{PROMPTS[0]} {number}", max_tokens=TOKENS,
                    ignore_eos=True, temperature=0.8, return_token_ids=True)
        super().__init__(fleet, number, body, begin)
        self.seconds = seconds
        self.outcome = "refused"  # or "served", or "timeout"
        self.late = None          # by how many seconds it ended after its deadline

    def run(self):
        assert self.begin.wait(PATIENCE_S)
        deadline = time.monotonic() + (self.seconds or PATIENCE_S)
        while (left := deadline - time.monotonic()) > 0:
            self.stream = Stream(self.fleet.url(self.router),
                                 {**self.body, "timeout_ms": max(round(1000 * left), 1)})
            try:
                self.stream.run(headers={"x-request-id": self.request_id}, timeout=PATIENCE_S)
                self.outcome = "timeout" if self.stream.finishes == {0: "timeout"} else "served"
                break
            except httpx.TransportError:
                self.router = 1 - self.router
            except AssertionError as error:
                if re.search("""['"]code['"]: ?['"]timeout['"]""", str(error)):
                    self.outcome = "timeout"
                    break
                assert "503" in str(error), error
                self.router = 1 - self.router
            time.sleep(0.05)
        self.late = time.monotonic() - deadline
        return self.stream.answer()

    def check(self, expected, most_late):
        """Its answer is whole or, if its time was over, a beginning of the whole one."""
        tokens, *_ = self.stream.answer()
        if self.outcome == "served":
            assert self.stream.answer() == expected
        else:
            assert tokens.get(0, []) == expected[0][0][:len(tokens.get(0, []))]
        assert self.late <= most_late, f"{self.outcome} {self.late:.1f} s after its deadline"


class Round:
    """All clients at once, and a fault among them, after which the late ones begin. `seconds` are
    those of the hurried clients, who have enough time without them."""

    def __init__(self, fleet, *load, seconds=(None, None)):
        self.fleet = fleet
        self.struck, now = threading.Event(), threading.Event()
        now.set()
        self.clients = [Client(fleet, i, body, self.struck if i in LATE else now)
                        for i, body in enumerate(bodies(*load))]
        self.hurried = [HurriedClient(fleet, CLIENTS + i, self.struck, limit)
                        for i, limit in enumerate(seconds)]

    def tokens(self):
        return [client.stream.token_count() if client.stream else 0 for client in self.clients]

    def wait_for(self, phase, running):
        streams = [i for i, client in enumerate(self.clients)
                   if i not in LATE and not client.body.get("use_beam_search")]
        reached = {
            "arrival": lambda: True,
            "prefill": lambda: any(self.tokens()),
            "decode": lambda: all(self.tokens()[i] > 5 for i in streams),
            "end": lambda: sum(running[i].done() for i in streams) >= len(streams) // 2,
        }[phase]
        wait_until(lambda: reached() or all(running[i].done() for i in streams), phase, PATIENCE_S)

    def run(self, phase=None, disturb=None):
        """Returns the answers, those of the hurried clients last."""
        everybody = self.clients + self.hurried
        with concurrent.futures.ThreadPoolExecutor(len(everybody)) as pool:
            running = [pool.submit(client.run) for client in everybody]
            try:
                if disturb:
                    self.wait_for(phase, running)
                    disturb(self.struck)
            finally:
                self.struck.set()
            return [one.result() for one in running]

    def pause(self):
        return max(client.pause for client in self.clients)


class Chaos:
    """Faults of a fleet on a machine that takes `slow` times as long as two idle cores, and where a
    client waits for a token for `plain` seconds without a fault."""

    def __init__(self, fleet, slow, plain):
        self.fleet = fleet
        self.detected, self.ready = slow * DETECTED_S, slow * READY_S
        self.ended = slow * ENDED_S
        # A client misses its next token until the group is ready and has computed everything again,
        # one fatal step of each request after another.
        self.pause = self.detected + self.ready + 2 * plain
        self.report = collections.defaultdict(list)

    @property
    def worker(self):
        """The process whose children the ranks are."""
        return self.fleet.processes.get("worker0", self.scheduler)

    @property
    def scheduler(self):
        return self.fleet.processes["scheduler0"]

    def serves(self):
        return (self.scheduler.process.poll() is None
                and self.scheduler.metric("flotilla_scheduler_group_ready") == 1)

    def quarantined(self):
        return self.scheduler.metric("flotilla_scheduler_quarantined_requests_total",
                                     outcome="quarantined")

    def most_late(self, process):
        """How much later than its deadline a request ends at most while this process is gone."""
        return self.ended + (self.detected if process in FRONT else 0)

    def timed(self, what, condition, limit):
        start = time.monotonic()
        wait_until(condition, what, seconds=limit)
        self.report[what].append(time.monotonic() - start)

    def strike(self, process, number, struck):
        """Sets `struck` as soon as the fault is there."""
        if process in ("mpirun", "rank 0", "rank 1"):
            self.strike_member(process, number, struck)
        else:
            self.strike_process(process, number, struck)
        wait_until(self.serves, "the replica serves", seconds=PATIENCE_S)

    def strike_member(self, member, number, struck):
        ranks, mpirun = self.worker.members()
        before = self.worker.metric("flotilla_worker_restarts_total")
        os.kill(mpirun if member == "mpirun" else ranks[int(member[-1])], number)
        struck.set()
        self.timed("member missed",
                   lambda: self.worker.metric("flotilla_worker_restarts_total") > before,
                   self.detected)
        self.timed("group ready again", lambda: self.worker.members()[0] != ranks, self.ready)
        for pid in (*ranks, mpirun):
            assert not os.path.exists(f"/proc/{pid}"), "a member was left behind"

    def strike_process(self, name, number, struck):
        one = self.fleet.processes[name]
        # A router notices that its scheduler is gone, and a scheduler that its worker is gone.
        lost = self.scheduler.metric("flotilla_worker_groups_lost_total") \
            if name == "worker0" else 0
        missed = {
            "worker0": lambda: self.scheduler.metric("flotilla_worker_groups_lost_total") > lost,
            "scheduler0": lambda: not self.fleet.up(0, router=1),
            "router0": lambda: True,
        }[name]
        one.process.send_signal(number)
        struck.set()
        if number == signal.SIGSTOP:
            self.timed("process missed", missed, self.detected)
            one.process.kill()  # as its supervisor's liveness probe does
            one.process.wait(timeout=60)
        elif number == signal.SIGTERM:
            assert one.process.wait(timeout=60) == 0
        else:
            self.timed("process missed", missed, self.detected)
            assert one.process.wait(timeout=60) == (3 if number == EXIT else -number)
        self.fleet.start(name)  # as its supervisor does, on the same ports


@pytest.fixture(scope="module", autouse=True)
def processes_that_exit(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", shared_library("exit", tmp_path_factory.mktemp("exit")))
        yield


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with chaos_fleet(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest.fixture
def record(record_property):
    """Records the measurements for a person who watches and for the report of the long run."""
    def both(what, value):
        print(f"{what}: {value}")
        record_property(what, value)
    return both


def check_load(scheduler, answers, record):
    """What the load has in common with use really happens, without any fault. How often requests are
    preempted depends on when they come."""
    happened = {
        "copied to the host": scheduler.metric("flotilla_kv_tier_copies_total", direction="out"),
        "drafts accepted": scheduler.metric("flotilla_scheduler_speculation_tokens_total",
                                            kind="accepted"),
        "ended by a stop string": sum("stop" in finishes.values() for *_, finishes in answers)}
    preempted = scheduler.metric("flotilla_scheduler_preemptions_total")
    record("without a fault", happened | {"preempted": preempted})
    assert all(happened.values()), happened


def survive(fleet, faults, record, long_prompts=SHORT):
    cold = Round(fleet, long_prompts)
    expected = cold.run()
    chaos = Chaos(fleet, max(1, cold.pause() / PLAIN_S[long_prompts]), cold.pause())
    check_load(chaos.scheduler, expected, record)
    record("longest wait for a token without a fault; allowed with one",
           f"{cold.pause():.1f} s; {chaos.pause:.1f} s")
    if len(faults) > 1:  # this costs as much as a fault
        again = Round(fleet, long_prompts).run()
        assert again == expected, "answers follow from the requests' names"
    counts, outcomes = collections.Counter(), collections.Counter()
    failed = 0
    blamed = 0
    for process, number, phase in faults:
        wait_until(lambda: fleet.up(0, 0) and fleet.up(0, 1), "both routers have the replica")
        round_ = Round(fleet, long_prompts, seconds=(HURRY_S, cold.pause()))
        before = chaos.quarantined()
        answers = round_.run(phase, lambda s, p=process, n=number: chaos.strike(p, n, s))
        name = "exit" if number == EXIT else number.name
        assert answers[:CLIENTS] == expected[:CLIENTS], f"{process}, {name}, {phase}"
        for client, whole in zip(round_.hurried, expected[CLIENTS:]):
            client.check(whole, chaos.most_late(process))
            assert client.outcome != "refused" or process in FRONT, f"{process}, {name}, {phase}"
            outcomes[client.outcome] += 1
            if client.outcome != "served":
                chaos.report["end after a deadline"].append(client.late)
        chaos.report["longest wait for a token"].append(round_.pause())
        assert round_.pause() <= chaos.pause, f"{process}, {name}, {phase}"
        if process != "router0":
            assert not any(client.retries for client in round_.clients), "a connection was lost"
        # Members that are ended from outside blame nobody. A worker that is killed says nothing.
        outside = number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
        if process in ("mpirun", "rank 0", "rank 1") and outside:
            blamed += chaos.quarantined() - before
        if process == "worker0" and number == signal.SIGTERM:
            blamed += chaos.quarantined() - before
        failed += chaos.scheduler.metric("flotilla_scheduler_quarantined_requests_total", outcome="failed")
        counts.update((process, name, phase))
    record(f"faults with seed {SEED}: how many of each process, signal, phase",
           f"{len(faults)}: " + ", ".join(f"{what} {count}" for what, count in counts.items()))
    record("outcomes of hurried clients", dict(outcomes))
    for what, times in chaos.report.items():
        record(f"{what}: times; median and most in seconds",
               f"{len(times)}; {sorted(times)[len(times) // 2]:.2f} and {max(times):.2f}")
    assert outcomes["timeout"] > 0, "no deadline passed"
    assert failed == 0, "a request was failed for what came from outside"
    assert blamed == 0, "a request was blamed for what came from outside"


def test_nothing_accepted_is_lost(fleet, record):
    survive(fleet, chosen(PROCESSES, 108 if LONG else 10), record)


def test_nothing_accepted_is_lost_behind_long_prompts(tmp_path, record):
    """All four long prompts have 2,000 tokens only with FLOTILLA_LONG=1: minutes of prefill."""
    load = LONGEST if LONG else MIXED
    with chaos_fleet(tmp_path, load) as fleet:
        survive(fleet, chosen(PROCESSES, 10) if LONG else [BEHIND_LONG], record, load)


def test_nothing_accepted_is_lost_where_schedulers_run_their_groups(tmp_path, record):
    processes = [process for process in PROCESSES if process != "worker0"]
    with chaos_fleet(tmp_path, colocate=True) as fleet:
        survive(fleet, chosen(processes, 40 if LONG else 5), record)


def test_a_rolling_restart_loses_nothing(tmp_path, record):
    """Restarts every process once, in turn, under load; ten times with FLOTILLA_LONG=1."""
    with Replicas(tmp_path, models=(MODEL, MODEL), routers=2, worker=("--tp", "1")) as fleet:
        expected = Round(fleet).run()
        served, ended = [0], []

        def load():
            while not ended:
                assert Round(fleet).run() == expected
                served[0] += CLIENTS

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load)
            try:
                for _ in range(10 if LONG else 1):
                    for name in list(fleet.flags):
                        one = fleet.processes[name].process
                        one.send_signal(signal.SIGTERM)
                        assert one.wait(timeout=60) == 0, name
                        fleet.start(name)
                        fleet.wait_up()
                        assert not loading.done(), loading.result()
            finally:
                ended.append(True)
            loading.result()
        record("requests served meanwhile", served[0])


def test_idle_costs_next_to_nothing(fleet, record):
    """The agent, its mpirun and its ranks each use less than 1 % of a core. Schedulers and
    routers ping their peers, twice a second and each both ways."""
    seconds = 30 if LONG else 4
    ranks, mpirun = fleet.processes["worker0"].members()
    pids = {f"rank {i}": pid for i, pid in enumerate(ranks)} | {"mpirun": mpirun}
    pids |= {name: one.process.pid for name, one in fleet.processes.items()}

    def cpu():
        ticks = {}
        for name, pid in pids.items():
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            ticks[name] = int(fields[11]) + int(fields[12])
        return ticks

    before = cpu()
    time.sleep(seconds)  # the CPU time of this period is measured
    shares = {name: (ticks - before[name]) / os.sysconf("SC_CLK_TCK") / seconds
              for name, ticks in cpu().items()}
    record("share of a core", ", ".join(
        f"{name} {100 * share:.2f} %" for name, share in shares.items()))
    for name, share in shares.items():
        assert share < (0.03 if name.startswith(("scheduler", "router")) else 0.01), shares
