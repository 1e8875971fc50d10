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


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True)


class SecondHost:
    """A network namespace with a link to this one. Tests of several checkouts may run side by
    side on one machine: each takes the first link and subnet that is free."""

    def __init__(self):
        self.namespace = f"flotilla-{os.getpid()}"
        run("ip", "netns", "add", self.namespace)
        for number in range(256):
            self.link = f"flotilla{number}"
            added = subprocess.run(["ip", "link", "add", self.link, "type", "veth", "peer", "name",
                                    "there", "netns", self.namespace],
                                   capture_output=True, text=True)
            if "File exists" not in added.stderr:
                break
        if added.returncode != 0:
            self.close()
            raise RuntimeError(f"There is no link to the other host: {added.stderr}")
        self.network = f"10.213.{number}.0/24"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        run("ip", "addr", "add", f"{self.here}/24", "dev", self.link)
        run("ip", "link", "set", self.link, "up")
        self.inside("addr", "add", f"{self.there}/24", "dev", "there")
        self.inside("link", "set", "lo", "up")
        self.connect(True)

    def inside(self, *words):
        run("ip", "-n", self.namespace, *words)

    def connect(self, up):
        self.inside("link", "set", "there", "up" if up else "down")

    def processes(self):
        return [int(pid) for pid in run("ip", "netns", "pids", self.namespace).stdout.split()]

    def flags(self, way, folder):
        """What tells a worker of the two hosts, for a way to start processes on the other."""
        if way == "node":
            secret = folder / "secret"
            secret.write_text(secrets.token_hex(32))
            secret.chmod(0o600)
            return ["--hosts", f"{self.here},{self.there}", "--fleet-secret-file", str(secret)]
        hostfile = folder / "hosts"
        hostfile.write_text(f"{self.here} slots=1\n{self.there} slots=1\n")
        shell = folder / "remote-shell"
        shell.write_text(f'#!/bin/sh\n# HOST COMMAND...\n[ "$1" = {self.there} ] || exit 1\nshift\n'
                         f'exec ip netns exec {self.namespace} sh -c "$*"\n')
        shell.chmod(0o700)
        return ["--hostfile", str(hostfile), "--remote-shell", str(shell)]

    def close(self):
        """The link goes with the namespace."""
        run("ip", "netns", "del", self.namespace)


@pytest.fixture(scope="module")
def second_host():
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    try:
        host = SecondHost()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr}")
    yield host
    host.close()


class Lent:
    """`flotilla node` in the namespace; a context manager."""

    def __init__(self, directory, host, flags):
        self.directory, self.host, self.flags = directory, host, flags
        self.port = 0
        self.start()

    def start(self):
        """Starts the process, at the port that it had before if it had one."""
        ready = self.directory / "host.json"
        ready.unlink(missing_ok=True)
        with open(self.directory / "host.log", "ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.host.namespace, binary(), "node",
                 "--host", self.host.there, "--listen-port", str(self.port),
                 "--ready-file", str(ready), *self.flags],
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
    flags = [*layout, "--threads", "1", "--group-network", second_host.network,
             *second_host.flags(way, directory)]
    secret = flags[flags.index("--fleet-secret-file"):][:2] if way == "node" else []
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(Lent(directory, second_host, secret)) if secret else None
        if other:
            flags += ["--hosts-port", str(other.port)]
        fleet = stack.enter_context(Fleet(directory, extra={
            "worker": flags, "scheduler": secret, "router": secret}))
        fleet.other = other
        yield fleet


def ranks_there(second_host, fleet):
    """The ranks of this fleet in the other host's namespace."""
    inside = second_host.processes()
    return [pid for pid in fleet.worker.members()[0] if pid in inside]


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

        for number in (signal.SIGKILL, signal.SIGSTOP):
            disturb(lambda: os.kill(ranks_there(second_host, fleet)[0], number))
        disturb(lambda: second_host.connect(False), undo=lambda: second_host.connect(True))
        assert worker.metric("flotilla_worker_restarts_total", cause="died") == 1
        assert worker.metric("flotilla_worker_restarts_total", cause="silent") == 2
        gone = {pid for ranks in lost for pid in ranks}
        wait_until(lambda: gone.isdisjoint(second_host.processes()),
                   "earlier ranks have ended", seconds=10)
        # `flotilla node` runs one daemon and its rank, and has reaped all earlier ones.
        if way == "node":
            inside = second_host.processes()
            assert len(inside) == 3, inside
    wait_until(lambda: not second_host.processes(), "the other host is empty", seconds=10)


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
