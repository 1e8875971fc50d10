"""Runs each attack of attackers.py beside eight clients that stream. The server must live and
keep its memory, and no other client may notice the attack.

Windows of time with the attack and without it take turns in one server. The long form has
three windows of 20 s with the attack and of 10 s without it, and judges them together. In the
short form both windows take 1.5 s, and one pair of windows must be good. The test compares what
the streaming clients see, and what the kernel reports about the server's processes.

The attacker needs CPU time, too, and on a machine with two cores this alone would delay
tokens. So the server computes with one thread, and clients and attackers stay on the last
CPU, where attackers yield to everybody (nice 10). Then only the server's work for the
attacker can delay a token. FLOTILLA_ATTACK_SECONDS gives other lengths.
"""

import contextlib
import fcntl
import multiprocessing
import os
import pathlib
import re
import time
import types

import grpc
import pytest

import attackers
import floods
import request_floods
import rude_clients
from flotilla_server import LONG, SANITIZED, Fleet, Server, wait_until
from security_files import new_secret, write
from steady_streams import SteadyStreams, Window

pytestmark = pytest.mark.skipif(SANITIZED, reason="measures time and memory")

ROUNDS = 3
SECONDS = float(os.environ.get("FLOTILLA_ATTACK_SECONDS", 20 if LONG else 1.5))  # of an attack
QUIET_SECONDS = SECONDS / 2 if LONG else SECONDS
MIB = 1 << 20
# On a busy machine, whose other work comes and goes between two windows, the limits of the short form
# are wider than those of the attack.
SHORT_RATIO, SLACK_S = 2.0, 0.0 if LONG else 0.02
MOST_S = 1.0  # more than without the attack, for a token, the first one, or /health
SERVER = ["--threads", "1"]
SCHEDULER = ["--prefix-cache", "off"]
# In a process: two executors have up to 2 for each core, and there are those of timers and events.
MOST_GRPC_THREADS = 8 * os.cpu_count()
F_SETPIPE_SZ = 1031
NOTHING = Window([], [], [], [])
ALL = [attack() for attack in floods.ALL + request_floods.ALL + rude_clients.ALL]


@contextlib.contextmanager
def started(attack, directory):
    """The server under attack: the test watches `.processes`, the streams use `.front`,
    `.scheduler` has the blocks, `.ports` are for the attacker and `.key` is for the streams."""
    options, key, keys = {}, "", {}
    flags = [flag.replace("DIRECTORY", str(directory)) for flag in attack.flags]
    compute = [*SERVER, "--kv-blocks", str(attack.blocks)]
    with contextlib.ExitStack() as stack:
        if attack.keyed:
            key, keys["key"] = new_secret(), new_secret()
            flags += ["--api-keys-file", str(write(
                directory / "keys",
                f"streams {key}\nattacker {keys['key']} {attack.key_options}\n"))]
        if attack.descriptors:
            options["prefix"] = ["prlimit", f"--nofile={attack.descriptors}:{attack.descriptors}"]
        if attack.unread_log:
            unread, options["stderr"] = os.pipe()
            fcntl.fcntl(unread, F_SETPIPE_SZ, 4096)
            stack.callback(os.close, unread)
        if attack.roles == ("serve",):
            one = stack.enter_context(Server(directory, *compute, *SCHEDULER, *flags, **options))
            if "stderr" in options:
                os.close(options["stderr"])
            processes, scheduler, internal = [one], one, ()
        else:
            fleet = stack.enter_context(Fleet(directory, extra={
                "worker": compute, "scheduler": SCHEDULER}))
            one, scheduler = fleet.router, fleet.scheduler
            processes = [fleet.router, fleet.scheduler, fleet.worker]
            internal = (scheduler.ports["listen"], fleet.worker.ports["listen"])
        yield types.SimpleNamespace(
            processes=processes, front=one, scheduler=scheduler, key=key, streams=attack.streams,
            ports=attackers.Ports(one.ports["http"], one.ports["grpc"], internal, **keys))


class Attacker:
    """The process that runs an attack. It is made ready while the test goes on; `begin` waits for
    it."""

    def __init__(self, attack, ports):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=attackers.perform, daemon=True,
                                       args=(attack, ports, theirs))
        self.process.start()
        self.ready, self.counts, self.rounds = False, {}, 0

    def wait_ready(self):
        """Waits until the process has nothing to do before it begins."""
        self.ready = self.ready or self.receive(30) == "ready"
        assert self.ready

    def begin(self, seconds, polite=False):
        self.wait_ready()
        self.pipe.send((polite, seconds))
        assert self.receive(60) == "begun"

    def end(self):
        """Waits for the end of the attack and adds up its counts."""
        for what, count in self.receive(SECONDS + 120).items():
            self.counts[what] = self.counts.get(what, 0) + count
        self.rounds += 1

    def receive(self, seconds):
        assert self.pipe.poll(seconds), "the attacker is stuck"
        return self.pipe.recv()

    def stop(self):
        with contextlib.suppress(OSError):
            self.pipe.send(False)
        self.process.join(5)
        self.process.kill()


class Memory:
    """Resident memory of processes in bytes: the present value, and the maximum since `begin`."""

    def __init__(self, processes):
        self.processes = processes

    def read(self, line):
        return [int(re.search(rf"{line}:\s+(\d+)",
                              pathlib.Path(f"/proc/{one.process.pid}/status").read_text())[1])
                * 1024 for one in self.processes]

    def begin(self):
        for one in self.processes:
            pathlib.Path(f"/proc/{one.process.pid}/clear_refs").write_text("5")
        self.before = self.read("VmRSS")

    def most(self):
        return self.read("VmHWM")


def used_blocks(server):
    return server.scheduler.metric("flotilla_kv_blocks", state="used")


def counts_of(server):
    looks = [one.look() for one in server.processes]
    return [one.threads for one in looks], [one.descriptors for one in looks]


def wait_settled(server):
    """Waits until nothing runs, and threads and descriptors have not changed for half a second."""
    wait_until(lambda: used_blocks(server) == 0, "no block is used")
    last, since = counts_of(server), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.05)
        if (now := counts_of(server)) != last:
            last, since = now, time.monotonic()
    return last


def streaming(server):
    return SteadyStreams(server.ports.http, server.key, {max(os.sched_getaffinity(0))}, server.streams)


def attacked(attack, server, attacker, memory):
    """Returns the windows without and with the attack: all of them together, or (in the short
    form) the first pair that is good."""
    with streaming(server) as streams:
        wait_until(lambda: streams.flowing(server.streams * 16), "streams flow", 60)
        pairs = []
        for _ in range(ROUNDS):
            if attack.twin:
                attacker.begin(QUIET_SECONDS, polite=True)
            begun = time.monotonic()
            time.sleep(QUIET_SECONDS)  # the length of the quiet window
            quiet_ended = time.monotonic()
            if attack.twin:
                attacker.receive(QUIET_SECONDS + 60)  # the counts
            if not pairs:
                memory.begin()
            attacker.begin(SECONDS)
            attacker_begun = time.monotonic()
            time.sleep(SECONDS / 2)
            if attack.descriptors:
                assert not grpc_complaint(server)
            time.sleep(max(0, attacker_begun + SECONDS - time.monotonic()))
            ended = time.monotonic()
            attacker.end()
            time.sleep(1)  # effects of the attack that last longer count
            for one in server.processes:
                assert one.process.poll() is None, f"{one.role} has ended"
            pairs.append((streams.window(begun, quiet_ended),
                          streams.window(attacker_begun, ended, ongoing=True)))
            if not LONG and not complaints(attack, *pairs[-1]):
                break
        most = memory.most()
    if LONG:
        quiet, disturbed = zip(*pairs)
        return sum(quiet, NOTHING), sum(disturbed, NOTHING), most
    return *pairs[-1], most


def grpc_complaint(server):
    """Why a new client, which tries again if the server cuts it off, gets no answer. Empty: it
    gets one."""
    with grpc.insecure_channel(f"127.0.0.1:{server.ports.grpc}") as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(
                b"", timeout=5 if LONG else 15, wait_for_ready=True)
            return ""
        except grpc.RpcError as error:
            return f"{error.code()}: {error.details()}"


def milliseconds(seconds):
    return f"{1000 * seconds:.0f}"


@pytest.mark.parametrize("attack", ALL, ids=str)
def test_nobody_notices(attack, tmp_path, record_property):
    with started(attack, tmp_path) as server:
        attacker = Attacker(attack, server.ports)
        try:
            if attack.warm_up:
                server.front.post("/v1/completions", **attack.warm_up)
            with streaming(server) as streams:  # makes all that the server makes at first use
                wait_until(lambda: streams.flowing(server.streams * 16), "streams flow", 60)
                assert not grpc_complaint(server)
            attacker.wait_ready()
            threads, descriptors = wait_settled(server)
            memory = Memory(server.processes)
            quiet, disturbed, most = attacked(attack, server, attacker, memory)
        finally:
            attacker.stop()
        summary = report(attack, quiet, disturbed, memory, most, attacker.counts, record_property)
        wait_until(lambda: used_blocks(server) == 0, "no block is used")
        assert not disturbed.failures, f"{disturbed.failures[:3]} {summary}"
        for before, peak in zip(memory.before, most):
            assert peak - before <= attack.memory_mib * MIB, summary
        found = complaints(attack, quiet, disturbed)
        assert not found, f"{found} {summary}"
        wait_as_before(server, threads + descriptors)
        for one in server.processes:
            assert one.look().grpc_threads <= MOST_GRPC_THREADS, one.thread_names()
        record_property("threads", join(threads))
        record_property("descriptors", join(descriptors))
        assert any(attacker.counts.values()), "nothing was attacked"
        for what, least in attack.floors(attacker.rounds, attacker.rounds * SECONDS).items():
            assert attacker.counts.get(what, 0) >= least, (
                f"the attacker was too slow: {what} must be at least {least:.0f} {summary}")
        for what in attack.forbidden:
            assert not attacker.counts.get(what), summary
        check_log(attack, server)


def wait_as_before(server, before):
    """Waits until there are no more threads and descriptors than before."""
    now = []

    def back():
        now[:] = sum(counts_of(server), [])
        return all(one <= then for one, then in zip(now, before))
    try:
        wait_until(back, "they are back")
    except AssertionError:
        raise AssertionError(f"threads and descriptors: {before}, now {now}") from None


def join(numbers):
    return " + ".join(map(str, numbers))


def report(attack, quiet, disturbed, memory, most, counts, record_property):
    """The figures, as columns of the long run's table."""
    ratio = disturbed.p99() / quiet.p99() if quiet.gaps and disturbed.gaps else float("inf")
    now = memory.read("VmRSS")
    figures = {
        "p99 ms, quiet": milliseconds(quiet.p99()), "attacked": milliseconds(disturbed.p99()),
        "ratio": f"{ratio:.2f}",
        "median ms, quiet": milliseconds(quiet.median() if quiet.gaps else 0),
        "median ms": milliseconds(disturbed.median() if disturbed.gaps else 0),
        "longest ms, quiet": milliseconds(max(quiet.gaps)),
        "longest ms": milliseconds(max(disturbed.gaps)),
        "tokens, quiet": len(quiet.gaps), "tokens": len(disturbed.gaps),
        "first token ms, most": milliseconds(max(disturbed.firsts, default=0)),
        "/health ms, most": milliseconds(max(disturbed.health, default=0)),
        "MiB before": join(one // MIB for one in memory.before),
        "most": join(one // MIB for one in most), "after": join(one // MIB for one in now),
        "what was sent": ", ".join(f"{what} {count}" for what, count in counts.items()),
    }
    for what, value in figures.items():
        record_property(what, value)
    summary = f"{attack}: {figures}"
    print(summary)
    return summary


def complaints(attack, quiet, disturbed):
    """The complaints of the streaming clients about the attack."""
    def longer(ratio, now, before):
        return now > (ratio if LONG else SHORT_RATIO) * before + SLACK_S

    if not (quiet.gaps and disturbed.gaps and disturbed.health):
        return ["nothing came"]
    found = []
    if max(disturbed.health) > max(quiet.health, default=0) + MOST_S:
        found.append("/health")
    # Compare the usual time between tokens, and the longest. A server that stalls sends few
    # tokens meanwhile, so no percentile shows the stall.
    if longer(attack.p99_ratio, disturbed.p99(), quiet.p99()):
        found.append("p99")
    if attack.median_ratio and longer(attack.median_ratio, disturbed.median(), quiet.median()):
        found.append("median")
    if max(disturbed.gaps) > max(quiet.gaps) + MOST_S:
        found.append("a token")
    if max(disturbed.firsts, default=0) > max(quiet.firsts, default=0) + MOST_S:
        found.append("a first token")
    return found


def check_log(attack, server):
    if not attack.marks:
        return
    log = server.front.log_text()
    assert "client_request_id=" in log
    raw = [hex(mark) for mark in attack.marks if chr(mark) in log]
    assert not raw, raw
