"""Attackers that ask for something and do not take it, leave in the middle, or wait: kinds of Attack
(attackers.py)."""

import collections
import contextlib
import socket
import struct
import time

from attackers import MODEL, Attack, connect, head, paced, post
from floods import HeldBodies, IdleSockets
from flotilla_server import LONG
from steady_streams import END, TOKEN

RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # of SO_LINGER


class Client:
    """One request on a connection of its own. `receive_bytes` is the size of the socket's buffer;
    0: the usual one."""

    def __init__(self, port, message, receive_bytes=0):
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(2)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(message)
        self.socket.setblocking(False)
        self.text, self.ended = b"", False

    def receive(self, size=1 << 20):
        """Takes what has come."""
        try:
            data = self.socket.recv(size)
            self.text += data
            self.ended = not data
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def receive_event(self):
        """Takes one event of the stream, or what has come of it."""
        try:
            data = self.socket.recv(65536, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.receive(data.find(b"\n\n") + 2 if b"\n\n" in data else len(data) or 1)

    def tokens(self):
        return self.text.count(TOKEN)

    def close(self):
        self.socket.close()


class Rude(Attack):
    """In the windows without the attack clients that behave send the same requests (`polite`), so
    that the server has the same to compute."""

    twin = True
    memory_mib = 100

    def completion(self, port, turn, tokens, **more):
        return post("/v1/completions", port, dict(
            model=MODEL, prompt=[2000 + turn % 20000, 2100, 2200], max_tokens=tokens,
            ignore_eos=True, temperature=0, stream=True, return_token_ids=True, **more))

    def opened(self, port, message, counts, **options):
        try:
            one = Client(port, message, **options)
            counts["requests"] += 1
            return one
        except OSError:
            counts["not accepted"] += 1
            return None


class NeverReaders(Rude):
    """256 clients that never read: of 16 requests a second half are streams of tokens and half have
    answers of 240 KB. When there are more, the oldest one leaves."""

    rate = 16
    clients = 256 if LONG else 96
    least = {"held at the end": clients}

    def begin(self, ports):
        self.held, self.counts = collections.deque(), collections.Counter()
        if not self.polite:
            for turn in paced(48, time.monotonic() + 60):
                if turn == self.clients:
                    break
                self.ask(ports, 1)

    def ask(self, ports, turn):
        if turn % 2:
            message = post("/detokenize", ports.http, dict(model=MODEL, tokens=[1] * 40_000))
        else:
            message = self.completion(ports.http, turn, 4, logprobs=5)
        one = self.opened(ports.http, message, self.counts,
                          receive_bytes=0 if self.polite else 4096)
        if one:
            self.held.append(one)

    def run(self, ports, until):
        for turn in paced(self.rate, until):
            self.ask(ports, turn)
            if not self.polite:
                if len(self.held) > self.clients:
                    self.held.popleft().close()
                continue
            for one in list(self.held):
                one.receive()
                if one.ended:
                    self.held.remove(one)
                    one.close()
        cut_off = sum(not HeldBodies.alive(one.socket) for one in self.held)
        for one in self.held:
            one.close()
        return {**self.counts, "held at the end": len(self.held), "cut off at the end": cut_off}


class SlowReaders(Rude):
    """64 clients, each of which reads one message a second of a stream of 16 tokens with their
    logprobs."""

    clients, tokens = 64 if LONG else 16, 16
    visits = tokens + 2  # of a client, for one request
    least = {"held at the end": clients}
    least_per_second = {"messages": 45} if LONG else {}  # no client reads where it begins anew

    def begin(self, ports):
        self.open, self.counts = {}, collections.Counter()
        self.visit = dict.fromkeys(range(self.clients), 0)
        for turn in paced(4, time.monotonic() + 60):
            if turn == self.clients:
                break
            self.see(ports, turn)
            self.visit[turn] += turn % self.visits  # so that as many ask again in each second

    def see(self, ports, number):
        """Does what the client does in its second."""
        one = self.open.pop(number, None)
        if self.visit[number] % self.visits == 0:
            if one:
                one.close()
            one = self.opened(ports.http, self.completion(
                ports.http, number + self.visit[number], self.tokens, logprobs=5), self.counts,
                receive_bytes=0 if self.polite else 4096)
        elif one and not one.ended:
            if self.polite:
                one.receive()
            else:
                one.receive_event()
                self.counts["messages"] += 1
        self.visit[number] += 1
        if one:
            self.open[number] = one

    def run(self, ports, until):
        for turn in paced(self.clients, until):
            self.see(ports, turn % self.clients)
        for one in self.open.values():
            one.close()
        return {**self.counts, "held at the end": len(self.open)}


class HalfCancelled(Rude):
    """Six streams of 16 tokens a second, half of which are cancelled after 8 tokens."""

    rate, tokens = 6, 16
    least = {"cancelled": 1}
    # Those that have begun last are not over yet.
    least_per_second = {"requests": 5.4, "cancelled": 2.5} if LONG else {}

    def run(self, ports, until):
        counts, running = collections.Counter(), []
        for turn in paced(10 * self.rate, until):
            if turn % 10 == 0:
                one = self.opened(ports.http, self.completion(ports.http, turn, self.tokens), counts)
                if one:
                    one.leaves = not self.polite and turn % 20 == 0
                    running.append(one)
            for one in list(running):
                one.receive()
                if one.leaves and one.tokens() >= self.tokens // 2:
                    counts["cancelled"] += 1
                elif one.ended:
                    counts["whole" if END in one.text else "cut off"] += 1
                else:
                    continue
                running.remove(one)
                one.close()
        for one in running:
            one.close()
        return dict(counts)

    forbidden = ("cut off",)


class ConnectAndLeave(Attack):
    """1,000 connections a second that are closed at once, half of them by a reset."""

    memory_mib = 100
    least_per_second = {"connections": 900} if LONG else {}
    grpc = False

    def run(self, ports, until):
        counts, began, number = collections.Counter(), time.monotonic(), 0
        for _ in paced(100, until):
            # As many as are due, and after a late turn twice as many.
            for _ in range(min(20, int(1000 * (time.monotonic() - began)) - number)):
                number += 1
                try:
                    one = connect(ports.grpc if self.grpc else ports.http, 0.5)
                    if number % 2:
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                    one.close()
                    counts["connections"] += 1
                except OSError:
                    counts["not accepted"] += 1
        return dict(counts)


class ConnectAndLeaveGrpc(ConnectAndLeave):
    """The same on the gRPC port."""

    grpc = True


class SlowHeads(Attack):
    """256 connections that send one byte of a header a second. The attacker opens those that the
    server closes again."""

    memory_mib = 100
    clients = 256
    least = {"connections": clients} if LONG else {}

    def run(self, ports, until):
        counts, held = collections.Counter(), {}
        beginning = head("GET", "/health", ports.http)[:-4]
        for turn in paced(self.clients, until):
            number = turn % self.clients
            one = held.get(number)
            if one and HeldBodies.alive(one):
                with contextlib.suppress(OSError):
                    one.send(b"a")
                    counts["bytes"] += 1
                continue
            counts["closed by the server"] += one is not None
            with contextlib.suppress(OSError):
                held[number] = connect(ports.http, 0.5)
                held[number].sendall(beginning + b"\r\nx-slow: ")
                counts["connections"] += 1
        for one in held.values():
            one.close()
        return dict(counts)


class TenThousandIdle(IdleSockets):
    """10,000 connections that send nothing, to a server that takes as many."""

    memory_mib = 100
    sockets = 10_000 if LONG else 3_000
    least = {"held at the end": 0.99 * sockets}
    descriptors = None
    flags = ("--max-connections", "16384")


class TenThousandIdleAtTheBound(TenThousandIdle):
    """The same to a server that takes 1,024, so that the oldest give way."""

    least = {"connections": 0.99 * TenThousandIdle.sockets}
    flags = ()


class TenThousandIdleGrpc(TenThousandIdleAtTheBound):
    """The same on the gRPC port, which takes 4,096."""

    grpc = True


ALL = (NeverReaders, SlowReaders, HalfCancelled, ConnectAndLeave, SlowHeads, TenThousandIdle)
if LONG:
    ALL += (ConnectAndLeaveGrpc, TenThousandIdleAtTheBound, TenThousandIdleGrpc)
