"""What attackers of a server are, for attacks_test.py: each is one kind of abuse
(floods.py, request_floods.py).

An attack runs in a process of its own, which yields its CPU to everybody else. What it
sends is made beforehand, and its rate is stated and kept: enough to break a server that has
the weakness, and little enough that what it costs the machine is the server's doing.
"""

import dataclasses
import itertools
import json
import os
import resource
import socket
import time

MIB = 1 << 20
MODEL = "smollm2"
MAX_BODY = 4 * MIB  # the server's


@dataclasses.dataclass
class Ports:
    """Where the server listens; keys that it takes, if it takes any."""

    http: int
    grpc: int
    internal: tuple = ()
    key: str = ""  # the attacker's


class Attack:
    """`run` attacks until it is time, and counts what came of it."""

    forbidden = ()  # the counts that must stay 0
    # What is attacked.
    flags = ()  # of the server
    roles = ("serve",)
    keyed = False  # it wants keys
    key_options = ""  # of the attacker's, in the server's file
    descriptors = None  # that it may have, if not as many as usual
    unread_log = False  # nobody reads its standard error, a pipe of 4 KiB
    # What is to be seen.
    marks = ()  # code points that the log must not hold

    def prepare(self, ports):
        """What can be made before the attack begins."""

    def begin(self, ports):
        """What comes before the time runs."""

    def run(self, ports, until):
        raise NotImplementedError

    def __str__(self):
        return type(self).__name__


def perform(attack, ports, seconds, pipe):
    """The body of the attacker's process: waits for a word, begins and says so, attacks, sends
    its counts; again until there is no word."""
    os.nice(10)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack.prepare(ports)
    pipe.send("ready")
    while pipe.recv():
        attack.begin(ports)
        pipe.send("begun")
        pipe.send(attack.run(ports, time.monotonic() + seconds))


def connect(port, timeout=1.0):
    one = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    one.settimeout(timeout)
    return one


def head(method, path, port, *lines, key=""):
    lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{port}", *lines]
    if key:
        lines.append(f"authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(path, port, body, key=""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, port, "content-type: application/json", "connection: close",
                f"content-length: {len(body)}", key=key) + body


def paced(rate, until):
    """Turns, `rate` per second at most; a late one is not made up for."""
    due = time.monotonic()
    for turn in itertools.count():
        now = time.monotonic()
        if now < due:
            time.sleep(due - now)
        due = max(due, now) + 1 / rate
        if due >= until:
            return
        yield turn
