"""A group whose ranks are on two hosts: this machine, and a network namespace with a link
to it. A substitute for ssh, or `flotilla node`, starts processes there."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess

import pytest

from fleet_test import serve_all
from flotilla_server import SANITIZED, Fleet, binary, wait_until

# Addresses of this test's own link; the fourth number of each host's.
NETWORK, HERE, THERE = "10.213.77.0/24", "10.213.77.1", "10.213.77.2"


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def second_host(tmp_path_factory):
    """(the name of its namespace, the flags of a worker for each way to start processes there)."""
    name = f"flotilla-{os.getpid()}"
    folder = tmp_path_factory.mktemp("hosts")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        pytest.skip("this machine makes no network namespaces")
    try:
        run("ip", "link", "add", "flotilla0", "type", "veth", "peer", "name", "flotilla1",
            "netns", name)
        run("ip", "addr", "add", f"{HERE}/24", "dev", "flotilla0")
        run("ip", "link", "set", "flotilla0", "up")
        for words in (["addr", "add", f"{THERE}/24", "dev", "flotilla1"],
                      ["link", "set", "flotilla1", "up"], ["link", "set", "lo", "up"]):
            run("ip", "-n", name, *words)
        hostfile = folder / "hosts"
        hostfile.write_text(f"{HERE} slots=1\n{THERE} slots=1\n")
        shell = folder / "remote-shell"
        shell.write_text(f'#!/bin/sh\n# HOST COMMAND...\n[ "$1" = {THERE} ] || exit 1\nshift\n'
                         f'exec ip netns exec {name} sh -c "$*"\n')
        shell.chmod(0o700)
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        yield name, {
            "shell": ["--hostfile", str(hostfile), "--remote-shell", str(shell)],
            "node": ["--hosts", f"{HERE},{THERE}", "--fleet-secret-file", str(secret)],
        }
    finally:
        subprocess.run(["ip", "link", "del", "flotilla0"], capture_output=True)
        run("ip", "netns", "del", name)


class Lent:
    """`flotilla node` in the namespace; a context manager."""

    def __init__(self, directory, name, flags):
        self.directory, self.name, self.flags = directory, name, flags
        self.port = 0
        self.start()

    def start(self):
        """Starts the process, at the port that it had before if it had one."""
        ready = self.directory / "host.json"
        ready.unlink(missing_ok=True)
        with open(self.directory / "host.log", "ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, binary(), "node", "--host", THERE,
                 "--listen-port", str(self.port), "--ready-file", str(ready), *self.flags],
                stdout=log, stderr=log)
        wait_until(ready.exists, "the other host is lent")
        self.port = json.loads(ready.read_text())["listen"]

    def stop(self):
        self.process.terminate()
        assert self.process.wait(20) == 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()


@contextlib.contextmanager
def fleet_on(directory, second_host, way, *layout):
    """A fleet; its `other` is the host that was lent to it."""
    name, ways = second_host
    flags = [*layout, "--threads", "1", "--group-network", NETWORK, *ways[way]]
    secret = flags[flags.index("--fleet-secret-file"):][:2] if way == "node" else []
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(Lent(directory, name, secret)) if secret else None
        if other:
            flags += ["--hosts-port", str(other.port)]
        fleet = stack.enter_context(Fleet(directory, extra={
            "worker": flags, "scheduler": secret, "router": secret}))
        fleet.other = other
        yield fleet


def ranks_there(second_host, fleet):
    """The ranks of this fleet in the other host's namespace."""
    inside = run("ip", "netns", "pids", second_host[0]).stdout.split()
    return [pid for pid in fleet.worker.members()[0] if str(pid) in inside]


@pytest.fixture(scope="module")
def one_host(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("one-host")) as one:
        return serve_all(one.url)


@pytest.mark.parametrize("way, layout", [("shell", ("--tp", "2")), ("shell", ("--pp", "2")),
                                         ("node", ("--tp", "2"))],
                         ids=["TP=2", "PP=2", "TP=2 by flotilla node"])
def test_two_hosts_give_the_bits_of_one(tmp_path, second_host, one_host, way, layout):
    with fleet_on(tmp_path, second_host, way, *layout) as fleet:
        assert len(fleet.worker.members()[0]) == 2
        assert len(ranks_there(second_host, fleet)) == 1
        assert serve_all(fleet.url) == one_host


@pytest.mark.skipif(SANITIZED, reason="measures time")
@pytest.mark.parametrize("way", ["shell", "node"])
def test_what_happens_on_the_other_host_costs_a_pause(tmp_path, second_host, one_host, way):
    """Its rank is killed, then the next one stopped, then the link is cut for a while."""
    name = second_host[0]
    with fleet_on(tmp_path, second_host, way, "--tp", "2") as fleet:
        worker = fleet.worker
        lost = []

        def disturb(how, undo=lambda: None):
            def go():
                lost.append(worker.members()[0])
                how()
                wait_until(lambda: worker.metric("flotilla_worker_restarts_total") == len(lost),
                           "the loss is noticed", seconds=3)
                undo()
                wait_until(lambda: worker.members()[0] != lost[-1], "the group is ready again",
                           seconds=20)
            assert serve_all(fleet.url, go) == one_host

        def link(state):
            return lambda: run("ip", "-n", name, "link", "set", "flotilla1", state)

        for number in (signal.SIGKILL, signal.SIGSTOP):
            disturb(lambda: os.kill(ranks_there(second_host, fleet)[0], number))
        disturb(link("down"), undo=link("up"))
        assert worker.metric("flotilla_worker_restarts_total", cause="died") == 1
        assert worker.metric("flotilla_worker_restarts_total", cause="silent") == 2
        gone = {str(pid) for ranks in lost for pid in ranks}

        def earlier_ranks():
            return gone & set(run("ip", "netns", "pids", name).stdout.split())

        wait_until(lambda: not earlier_ranks(), "earlier ranks have ended", seconds=10)
        # `flotilla node` runs one daemon and its rank, and has reaped all earlier ones.
        if way == "node":
            inside = run("ip", "netns", "pids", name).stdout.split()
            assert len(inside) == 3, inside
    wait_until(lambda: not run("ip", "netns", "pids", name).stdout.split(),
               "the other host is empty", seconds=10)


def test_a_group_waits_for_a_host_that_went(tmp_path, second_host, one_host):
    with fleet_on(tmp_path, second_host, "node", "--tp", "2") as fleet:
        before = fleet.worker.members()[0]

        def go():
            fleet.other.stop()
            wait_until(lambda: fleet.worker.metric("flotilla_worker_restarts_total") > 0,
                       "the loss is noticed")
            fleet.other.start()
            wait_until(lambda: fleet.worker.members()[0] != before, "the group is ready again",
                       seconds=60)

        assert serve_all(fleet.url, go) == one_host
