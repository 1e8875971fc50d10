"""The base of the attackers in attacks_test.py. Each attacker is one kind of abuse
(floods.py, request_floods.py, rude_clients.py).

An attack runs in a process of its own, which yields its CPU to everybody else. The attacker
prepares its bytes before it begins, and states and keeps its rate. The rate is high enough to
break a server that has the weakness, and so low that the server, not the attacker, causes the
load on the machine.
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
    """Where the server listens, and the keys that it accepts, if it needs any."""

    http: int
    grpc: int
    internal: tuple = ()
    key: str = ""  # the attacker's


class Attack:
    """`run` attacks until its time is over, and counts the outcomes."""

    forbidden = ()  # the counts that must stay 0
    # The counts that must come to so much, in each attack and in each second of it; with less the attacker
    # was too slow, and its attack shows nothing.
    least, least_per_second = {}, {}
    # The server under attack.
    flags = ()  # of the server; DIRECTORY in them stands for one that is deleted later
    blocks = 96  # KV blocks: 7 for each stream, and some more. The pool takes memory when it is used.
    roles = ("serve",)
    keyed = False  # the server needs keys
    key_options = ""  # of the attacker's key, in the server's file
    descriptors = None  # the server's limit, if not the usual one
    unread_log = False  # nobody reads the server's standard error, a pipe of 4 KiB
    # Whether clients that behave send the same in the windows without the attack. `polite` then says
    # which of the two begin and run are to be.
    twin = polite = False
    # What the test checks.
    marks = ()  # code points that the log must not hold
    streams = 8  # clients beside it
    memory_mib = 64  # the most by which a process grows
    p99_ratio = 1.2  # of the times between two tokens, to those without the attack, in the long form
    median_ratio = None  # the same; none: it is not checked
    warm_up = None  # a completion, for which the server makes what it keeps; its answer is 200

    def prepare(self, ports):
        """Prepares what can be made before the attack begins."""

    def begin(self, ports):
        """Does the work that comes before the measured time."""

    def run(self, ports, until):
        raise NotImplementedError

    def floors(self, rounds, seconds):
        """The counts that so many attacks, of so many seconds in all, must come to."""
        return {**{what: count * rounds for what, count in self.least.items()},
                **{what: rate * seconds for what, rate in self.least_per_second.items()}}

    def __str__(self):
        return type(self).__name__


def perform(attack, ports, pipe):
    """The body of the attacker's process: waits for a command (whether to be polite, and for how
    long), begins and reports it, attacks, and sends its counts. It repeats this until no command
    comes."""
    os.nice(10)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack.prepare(ports)
    pipe.send("ready")
    while command := pipe.recv():
        attack.polite, seconds = command
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
    """Yields turns, `rate` per second at most. It does not make up for a late turn."""
    due = time.monotonic()
    for turn in itertools.count():
        now = time.monotonic()
        if now < due:
            time.sleep(due - now)
        due = max(due, now) + 1 / rate
        if due >= until:
            return
        yield turn
