"""Eight clients that stream all the time. The module records when each of their tokens came.

One thread reads all their sockets. It takes less than a hundredth of a core at a few
hundred tokens per second, so it measures the server and not itself. Requests are short and
follow each other, so that each window of time has the same work.
"""

import dataclasses
import json
import os
import selectors
import socket
import statistics
import threading
import time

from flotilla_server import MODEL

STREAMS = 8
TOKENS = 64  # of one request
PROMPT_TOKENS = 8
HEALTH_EVERY_S = 0.5
TOKEN, END = b'"token_ids":[', b"[DONE]"


@dataclasses.dataclass
class Window:
    """What the clients saw between two moments; times are in seconds."""

    gaps: list  # between two tokens of one request
    firsts: list  # from a request to its first token
    health: list  # from a GET of /health to its answer
    failures: list  # requests that were not served to their end, and why

    def __add__(self, other):
        return Window(*(getattr(self, one.name) + getattr(other, one.name)
                        for one in dataclasses.fields(self)))

    def p99(self):
        return sorted(self.gaps)[int(0.99 * (len(self.gaps) - 1))]

    def median(self):
        return statistics.median(self.gaps)


class Exchange:
    """One request on a connection of its own, as a state machine over its socket."""

    def __init__(self, streams, message):
        self.streams, self.since = streams, time.monotonic()  # when the wait began
        self.head, self.ended, self.unsent = b"", False, message
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", streams.port))  # a full backlog blocks no other client

    def step(self):
        """Does what can be done without waiting. False: the exchange is over."""
        now = time.monotonic()
        try:
            if self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
                return True
            data = self.socket.recv(65536)
        except BlockingIOError:
            return True
        except OSError as error:
            self.head, data = self.head or repr(error).encode(), b""
        if len(self.head) < 4096:
            self.head += data
        self.take(data, now)
        return bool(data)

    def close(self):
        self.socket.close()


class Health(Exchange):
    """A GET of /health."""

    def awaited(self):
        return self.streams.health

    def take(self, data, now):
        if data and not self.ended and b'"ok"' in self.head:
            self.awaited().append((self.since, now))
            self.ended = True


class Completion(Exchange):
    """A streamed completion."""

    tail, begun = b"", False

    def awaited(self):
        return self.streams.gaps if self.begun else self.streams.firsts

    def take(self, data, now):
        # A mark may come in two parts.
        text = self.tail + data
        for _ in range(text.count(TOKEN)):
            self.awaited().append((self.since, now))
            self.since, self.begun = now, True
        self.ended = self.ended or END in text
        cut = text.rfind(TOKEN)
        self.tail = text[max(cut + len(TOKEN) if cut >= 0 else 0, len(text) - len(TOKEN) + 1):]


class SteadyStreams:
    """The clients, from entry to exit of the context, on these CPUs."""

    def __init__(self, port, key=None, cpus=None, streams=STREAMS):
        self.port, self.key, self.cpus, self.streams = port, key, cpus, streams
        # (from, to) of exchanges that are over
        self.gaps, self.firsts, self.health, self.failures = [], [], [], []
        self.running = []
        self.stopping = False
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stopping = True
        self.thread.join()

    def message(self, number):
        first = 1000 + 7 * number % 30000
        # The first requests are shorter, so that ends and beginnings are spread over time.
        tokens = TOKENS * min(number, self.streams) // self.streams
        body = json.dumps(dict(model=MODEL, prompt=list(range(first, first + PROMPT_TOKENS)),
                               max_tokens=tokens, ignore_eos=True, stream=True, temperature=0,
                               return_token_ids=True)).encode()
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        return (f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{key}"
                f"content-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n").encode() + body

    def run(self):
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)  # of this thread
        selector = selectors.DefaultSelector()
        number = 0
        probe = (f"GET /health HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
                 "connection: close\r\n\r\n").encode()

        def watch(exchange):
            self.running.append(exchange)
            selector.register(exchange.socket, selectors.EVENT_WRITE, exchange)

        def begin():
            nonlocal number
            number += 1
            watch(Completion(self, self.message(number)))

        due = [time.monotonic() + 0.15 * i for i in range(self.streams)]  # out of step
        next_health = time.monotonic()
        while not self.stopping:
            now = time.monotonic()
            while due and due[0] <= now:
                due.pop(0)
                begin()
            if next_health <= now:
                next_health = now + HEALTH_EVERY_S
                watch(Health(self, probe))
            wake = min([next_health, *due[:1]])
            for key, _ in selector.select(max(0, wake - now)):
                exchange = key.data
                if exchange.step():
                    if not exchange.unsent and key.events == selectors.EVENT_WRITE:
                        selector.modify(exchange.socket, selectors.EVENT_READ, exchange)
                    continue
                selector.unregister(exchange.socket)
                self.running.remove(exchange)
                exchange.close()
                if not exchange.ended or b" 200 " not in exchange.head[:20]:
                    self.failures.append((exchange.since, time.monotonic(),
                                          f"{type(exchange).__name__}: {exchange.head[:300]!r}"))
                if isinstance(exchange, Completion):
                    # A request that fails at once is not tried again at once.
                    due.append(time.monotonic() + (0 if exchange.ended else 0.1))
                    due.sort()
        for exchange in self.running:
            exchange.close()

    def flowing(self, tokens=STREAMS * 4):
        """Whether so many tokens have come."""
        return len(self.gaps) >= tokens

    def window(self, begin, end, ongoing=False):
        """The waits that began in the window, before `end`; with `ongoing`, also earlier waits that
        lasted into it. A wait that is not over has lasted until now."""
        now = time.monotonic()

        def waits(log):
            pending = [(one.since, now) for one in list(self.running)
                       if not one.ended and one.awaited() is log]
            return [to - since for since, to in log + pending
                    if since < end and (to if ongoing else since) >= begin]
        return Window(waits(self.gaps), waits(self.firsts), waits(self.health),
                      [why for since, to, why in list(self.failures)
                       if since < end and to >= begin])
