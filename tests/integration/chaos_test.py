"""Chaos on real processes: a member of a fleet is killed, stopped or ended, or exits, while 16
clients stream. No accepted answer is lost or altered, and no token comes twice. When a router
dies, its connections end, and its clients get the same answers from the other router.

A fault is a process, a signal and a phase of the clients' requests. Every tenth of all
combinations is tried; with FLOTILLA_LONG=1 all of them are tried, and some again. Some faults
hit a scheduler that runs its group itself.
"""

import collections
import concurrent.futures
import itertools
import os
import random
import signal
import time

import httpx
import pytest

from fleet_test import PROMPTS, Stream
from flotilla_server import LONG, MODEL, SANITIZED, Replicas, shared_library, wait_until

pytestmark = pytest.mark.skipif(SANITIZED, reason="its limits are times")

CLIENTS = 16
TOKENS = 60
PROCESSES = ("router0", "scheduler0", "worker0", "mpirun", "rank 0", "rank 1")
EXIT = signal.SIGRTMIN  # exit.c
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, EXIT)
PHASES = ("arrival", "prefill", "decode", "end")
FAULTS = list(itertools.product(PROCESSES, SIGNALS, PHASES))
SEED = int(os.environ.get("FLOTILLA_CHAOS_SEED", "1"))
# The promised limits on a machine that does nothing else, and the limits on a busy machine.
DETECTED_S, READY_S = (2, 5) if LONG else (6, 20)
# How long a client waits for the next token. A scheduler that runs its group itself must load
# the model when it starts again.
PATIENCE_S = DETECTED_S + READY_S + 5


def chosen(processes, count):
    """Chooses faults evenly, so that each process, signal and phase comes about equally often."""
    if count >= len(FAULTS):
        return FAULTS + random.Random(SEED).sample(FAULTS, count - len(FAULTS))
    # Steps of a Latin square: 10 faults have every process and signal.
    return [(processes[i % len(processes)], SIGNALS[(i + i // 4) % 4], PHASES[(i + i // 3) % 4])
            for i in range(count)]


def bodies():
    """Requests that are greedy, seeded by their name, with several choices, log-probabilities,
    penalties and beams."""
    for i in range(CLIENTS):
        body = dict(model=MODEL, prompt=f"{PROMPTS[i % len(PROMPTS)]} {i}", max_tokens=TOKENS,
                    ignore_eos=True, temperature=0 if i % 3 == 0 else 0.8, n=2 if i % 5 == 1 else 1,
                    logprobs=1 if i % 4 == 2 else None, return_token_ids=True)
        if i % 5 == 3:
            body |= dict(repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.3,
                         logit_bias={"260": -2})
        if i % 8 == 7:
            body |= dict(use_beam_search=True, best_of=3, n=2, temperature=0, logprobs=None)
        yield body


class Client:
    """One request, which the client sends again with the same id when its router dies."""

    def __init__(self, fleet, number, body, first):
        self.fleet, self.body = fleet, body
        self.request_id = f"chaos-{number}"
        self.router = first
        self.retries = 0
        self.stream = None

    def run(self, deadline=90):
        give_up = time.monotonic() + deadline
        parts = []
        while True:
            self.stream = Stream(self.fleet.url(self.router), self.body)
            try:
                self.stream.run(headers={"x-request-id": self.request_id}, timeout=PATIENCE_S)
                break
            except (httpx.TransportError, AssertionError) as error:
                refused = isinstance(error, AssertionError) and "503" in str(error)
                assert refused or isinstance(error, httpx.TransportError), error
                assert time.monotonic() < give_up, "no answer"
                parts.append(self.stream.tokens)
                self.retries += not refused
                self.router = 1 - self.router
                time.sleep(0.05)
        for part in parts:  # earlier tries gave the same answer
            for choice, tokens in part.items():
                assert self.stream.tokens[choice][:len(tokens)] == tokens
        return self.stream.answer()


class Round:
    """All clients at once, and a fault among them."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.clients = [Client(fleet, i, body, i % 2) for i, body in enumerate(bodies())]

    def tokens(self):
        return [client.stream.token_count() if client.stream else 0 for client in self.clients]

    def wait_for(self, phase, running):
        streams = [i for i, client in enumerate(self.clients)
                   if not client.body.get("use_beam_search")]
        reached = {
            "arrival": lambda: True,
            "prefill": lambda: any(self.tokens()),
            "decode": lambda: all(self.tokens()[i] > 5 for i in streams),
            "end": lambda: sum(self.tokens()[i] >= TOKENS for i in streams) >= len(streams) // 2,
        }[phase]
        wait_until(lambda: reached() or any(one.done() for one in running), phase)

    def run(self, phase=None, disturb=None):
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(client.run) for client in self.clients]
            if disturb:
                self.wait_for(phase, running)
                disturb()
            return [one.result() for one in running]


class Chaos:
    def __init__(self, fleet):
        self.fleet = fleet
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

    def timed(self, what, condition, limit):
        start = time.monotonic()
        wait_until(condition, what, seconds=limit)
        self.report[what].append(time.monotonic() - start)

    def strike(self, process, number):
        if process in ("mpirun", "rank 0", "rank 1"):
            self.strike_member(process, number)
        else:
            self.strike_process(process, number)
        wait_until(self.serves, "the replica serves", seconds=30)

    def strike_member(self, member, number):
        ranks, mpirun = self.worker.members()
        before = self.worker.metric("flotilla_worker_restarts_total")
        os.kill(mpirun if member == "mpirun" else ranks[int(member[-1])], number)
        self.timed("member missed",
                   lambda: self.worker.metric("flotilla_worker_restarts_total") > before, DETECTED_S)
        self.timed("group ready again", lambda: self.worker.members()[0] != ranks, READY_S)
        for pid in (*ranks, mpirun):
            assert not os.path.exists(f"/proc/{pid}"), "a member was left behind"

    def strike_process(self, name, number):
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
        if number == signal.SIGSTOP:
            self.timed("process missed", missed, DETECTED_S)
            one.process.kill()  # as its supervisor's liveness probe does
            one.process.wait(timeout=60)
        elif number == signal.SIGTERM:
            assert one.process.wait(timeout=60) == 0
        else:
            self.timed("process missed", missed, DETECTED_S)
            assert one.process.wait(timeout=60) == (3 if number == EXIT else -number)
        self.fleet.start(name)  # as its supervisor does, on the same ports


@pytest.fixture(scope="module", autouse=True)
def processes_that_exit(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", shared_library("exit", tmp_path_factory.mktemp("exit")))
        yield


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Replicas(tmp_path_factory.mktemp("chaos"), models=(MODEL,), routers=2,
                worker=("--tp", "2")) as running:
        yield running


@pytest.fixture
def record(record_property):
    """Records the measurements for a person who watches and for the report of the long run."""
    def both(what, value):
        print(f"{what}: {value}")
        record_property(what, value)
    return both


def survive(fleet, faults, record):
    chaos = Chaos(fleet)
    expected = Round(fleet).run()
    assert Round(fleet).run() == expected, "answers follow from the requests' names"
    counts = collections.Counter()
    failed = 0
    blamed = 0
    for process, number, phase in faults:
        wait_until(lambda: fleet.up(0, 0) and fleet.up(0, 1), "both routers have the replica")
        round_ = Round(fleet)
        before = chaos.quarantined()
        answers = round_.run(phase, lambda p=process, n=number: chaos.strike(p, n))
        name = "exit" if number == EXIT else number.name
        assert answers == expected, f"{process}, {name}, {phase}"
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
    for what, times in chaos.report.items():
        record(f"{what}: times; median and most in seconds",
               f"{len(times)}; {sorted(times)[len(times) // 2]:.2f} and {max(times):.2f}")
    assert failed == 0, "a request was failed for what came from outside"
    assert blamed == 0, "a request was blamed for what came from outside"


def test_nothing_accepted_is_lost(fleet, record):
    survive(fleet, chosen(PROCESSES, 108 if LONG else 10), record)


def test_nothing_accepted_is_lost_where_schedulers_run_their_groups(tmp_path, record):
    processes = [process for process in PROCESSES if process != "worker0"]
    with Replicas(tmp_path, models=(MODEL,), worker=("--tp", "2"), colocate=True) as fleet:
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
                        wait_until(lambda: all(fleet.up(g, r) for g in (0, 1) for r in (0, 1)),
                                   f"all are there after {name}")
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
