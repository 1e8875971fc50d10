"""Attackers that send requests in a loop: kinds of Attack (attackers.py)."""

import collections
import itertools
import json
import socket
import threading
import time
import urllib.request

import grpc

import hostile_forms
from attackers import MODEL, Attack, connect, head, paced, post
from flotilla_server import LONG

LATE = "unanswered when the time was over"


class Requests(Attack):
    """Sends messages in turn, each on a connection of its own, `rate` per second at most from
    each of `clients`. `judge` names the outcome of one."""

    rate = 100
    clients = 1
    timeout = 30  # for an answer
    grace = 2  # how long answers may come when the time is over
    patience = 10  # how long requests may be sent then, if there have not been enough
    linger = 0.0  # how long to wait for more after an answer

    def messages(self, ports):
        raise NotImplementedError

    def judge(self, message, answer, closed):
        return answer[9:12].decode() or "no answer"

    def enough(self, counts):
        """Whether the attack may end when its time is over: it has had an answer."""
        return bool(counts)

    def prepare(self, ports):
        self.made = itertools.cycle(self.messages(ports))

    def run(self, ports, until):
        counts = collections.Counter()

        def client():
            for _ in paced(self.rate, until + self.patience):
                if time.monotonic() >= until and self.enough(counts):
                    break
                self.ask(ports, next(self.made),
                         min(until + self.grace, time.monotonic() + self.timeout), counts)

        threads = [threading.Thread(target=client) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(counts)

    def ask(self, ports, message, deadline, counts):
        answer, closed = b"", False
        try:
            with connect(ports.http) as one:
                one.settimeout(max(0.1, deadline - time.monotonic()))
                self.send(one, message)
                while data := one.recv(65536):
                    answer += data
                    if self.linger:
                        one.settimeout(self.linger)
                closed = True
        except TimeoutError:
            if not answer and time.monotonic() >= deadline - 0.05:
                counts[LATE] += 1
                return
        except OSError:
            closed = True
        counts[self.judge(message, answer, closed)] += 1

    def send(self, one, message):
        one.sendall(message)


def wide(size, before, item, after):
    """JSON of about `size` bytes with many siblings."""
    count = (size - len(before) - len(after)) // (len(item) + 1)
    return (before + ",".join([item] * count) + after).encode()


class WideJson(Requests):
    """750 KB of JSON with many siblings, one body after the other, 10 per second at most."""

    size = 750_000
    rate = 10

    def messages(self, ports):
        model = f'{{"model":"{MODEL}",'
        chat, plain = "/v1/chat/completions", "/v1/completions"
        return [post(path, ports.http, wide(self.size, model + before, item, after))
                for path, before, item, after in (
                    (chat, '"messages":[', "{}", "]}"),
                    (plain, '"prompt":[', "[1]", "]}"),
                    (plain, '"prompt":"x","stop":[', '""', "]}"),
                    (chat, '"x":[', '{"a":[]}', "]}"),
                    (plain, '"prompt":[', "1", "]}"))]


class WideJson4MB(WideJson):
    """The same with 4 MB, 3 per second at most."""

    size = 4_000_000
    rate = 3


class RefusedPrompts(Requests):
    """A client sends prompts of 4 MB, which are too long for the model, one after the other,
    5 per second at most."""

    rate = 5

    def messages(self, ports):
        words = ["ocean ", "liberty of ", "seven hundred and "]
        return [post("/v1/completions", ports.http, dict(
            model=MODEL, max_tokens=1, prompt=word * (4_190_000 // len(word)))) for word in words]


class RefusedPromptsOfFour(RefusedPrompts):
    """The same by four clients."""

    clients = 4


class Smuggling(Requests):
    """Requests whose end two readers could see in different places, each with another request
    behind it, 50 per second. The server must refuse each and close the connection."""

    rate = 50
    linger = 0.2
    forbidden = ("answered twice", "left open", "accepted")

    def messages(self, ports):
        inner = head("GET", "/health", ports.http)
        line = f"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1:{ports.http}\r\n"
        codings = ["identity", "chunked, identity", "gzip, chunked, gzip", "xchunked",
                   "chunked, chunked", "\x0bchunked", "chunked\r\ntransfer-encoding: identity",
                   "identity\r\ncontent-length: 0"]
        made = [f"{line}transfer-encoding: {coding}\r\n\r\n".encode() + inner
                for coding in codings]
        # A request without a Host header, and one with two.
        made += [b"GET /health HTTP/1.1\r\n\r\n" + inner,
                 b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n" + inner]
        return made

    def judge(self, message, answer, closed):
        if answer.count(b"HTTP/1.1 ") > 1:
            return "answered twice"
        if not answer:
            return "no answer"
        if not answer.startswith(b"HTTP/1.1 4") and not answer.startswith(b"HTTP/1.1 501"):
            return "accepted"
        return "refused" if closed else "left open"


class HalfClosers(Requests):
    """Whole requests, 50 per second, whose sender closes its side and then waits for the
    answer."""

    rate = 50
    forbidden = ("unanswered",)

    def messages(self, ports):
        return [head("GET", "/health", ports.http),
                post("/tokenize", ports.http, dict(model=MODEL, prompt="Half a league"))]

    def send(self, one, message):
        one.sendall(message)
        one.shutdown(socket.SHUT_WR)

    def judge(self, message, answer, closed):
        # An interim answer may come first; with it the server learns whether the client is there.
        return "answered" if b"HTTP/1.1 200 " in answer else "unanswered"


class ForeignPages(Requests):
    """What a page of a foreign site could send through a browser on the server's machine,
    100 per second: other content types with an Origin, and foreign names for this host."""

    forbidden = ("accepted",)

    def messages(self, ports):
        body = json.dumps(dict(model=MODEL, prompt="x")).encode()
        length = f"content-length: {len(body)}"
        origin = "origin: http://evil.example"
        simple = [head("POST", "/tokenize", ports.http, "connection: close", origin, length,
                       *kind) + body
                  for kind in ((), ("content-type: text/plain",),
                               ("content-type: application/x-www-form-urlencoded",))]
        return simple + [
            f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
            for host in ("evil.example", f"evil.example:{ports.http}", "127.0.0.1.evil.example")]

    def judge(self, message, answer, closed):
        return "accepted" if answer.startswith(b"HTTP/1.1 2") else "refused"


class LogEscapes(Requests):
    """Ids with C1 controls and bidirectional overrides, on 2 requests per second. More requests
    would delay others because the server serves them."""

    rate = 2
    marks = [*range(0x80, 0xa0), *range(0x202a, 0x202f), *range(0x2066, 0x206a)]

    def messages(self, ports):
        return [post("/v1/completions", ports.http, dict(
            model=MODEL, prompt="x", max_tokens=1, request_id=f"a{chr(mark)}b"))
            for mark in self.marks]


class StandingLogReader(Requests):
    """Nobody reads the server's log, whose pipe takes 4 KiB. 50 requests per second that do not
    fit the context, and so cost no step, write a line each."""

    rate = 50
    timeout = 2
    flags = ("--log-level", "debug")
    unread_log = True

    def messages(self, ports):
        with urllib.request.urlopen(f"http://127.0.0.1:{ports.http}/v1/models") as answer:
            context = json.load(answer)["data"][0]["max_model_len"]
        return [post("/v1/completions", ports.http, dict(
            model=MODEL, prompt="x", max_tokens=context, request_id="i" * 200))]


class HighPriority(Requests):
    """Ten clients whose key allows no priority above 0 ask a server with 8 places for 48 tokens
    each, with priority 100, 10 times per second each."""

    clients = 10
    rate = 10
    flags = ("--max-seqs", "8")
    keyed = True
    key_options = "max-priority=0"
    forbidden = ("200",)

    def messages(self, ports):
        return [post("/v1/completions", ports.http, dict(
            model=MODEL, prompt=[2000 + i, 2100], max_tokens=48, ignore_eos=True, temperature=0,
            priority=100), key=ports.key) for i in range(20)]


class UnreadableProtobufs(Requests):
    """Calls whose message is not valid protobuf, 50 per second."""

    rate = 50
    forbidden = ("another code",)

    def messages(self, ports):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}")
        bodies = [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x08", b"\x0f" * 4096]
        names = ["Generate", "Tokenize", "Detokenize", "GetModelInfo", "Abort"]
        return list(itertools.product((f"/flotilla.v1.Inference/{name}" for name in names), bodies))

    def ask(self, ports, message, deadline, counts):
        path, body = message
        try:
            list(self.channel.unary_stream(path)(body, timeout=10))
            counts["another code"] += 1
        except grpc.RpcError as error:
            refused = error.code() == grpc.StatusCode.INVALID_ARGUMENT
            counts["INVALID_ARGUMENT" if refused else "another code"] += 1


class HostileForms(Requests):
    """Two clients send completions with forms that are made to cost (hostile_forms.py), in turn, 20
    per second at most from each. A form is served or refused. In the long form each is, and an attack
    lasts until it has its third of them."""

    rate = 20
    clients = 2
    timeout, grace, patience = (60, 90, 30) if LONG else (30, 2, 10)
    streams = 16
    # Grammars that are kept (64 MiB), one that is read, and matchers.
    memory_mib = 192
    p99_ratio = 1.3
    median_ratio = 1.1
    blocks = 256
    warm_up = dict(model=MODEL, prompt="x", max_tokens=2, structured_outputs={"regex": "[a-z]+"})
    forbidden = ("500", "no answer", LATE) if LONG else ("500", "no answer")

    def floors(self, rounds, seconds):
        return {"forms": len(hostile_forms.forms())} if LONG else {}

    def messages(self, ports):
        forms = hostile_forms.forms()
        assert len({json.dumps(form) for form in forms}) == 100
        return [post("/v1/completions", ports.http, dict(
            model=MODEL, prompt="x", max_tokens=5, structured_outputs=form)) for form in forms]

    def prepare(self, ports):
        super().prepare(ports)
        self.attacks, self.judged = 0, set()

    def enough(self, counts):
        return len(self.judged) >= min(100, 34 * self.attacks) if LONG else bool(counts)

    def run(self, ports, until):
        self.attacks += 1
        before = len(self.judged)
        return {**super().run(ports, until), "forms": len(self.judged) - before}

    def judge(self, message, answer, closed):
        status = super().judge(message, answer, closed)
        if status in ("200", "400"):  # 429: it is not judged yet, and its turn comes again
            self.judged.add(message)
        return status


ALL = (WideJson, WideJson4MB, RefusedPrompts, RefusedPromptsOfFour, Smuggling, StandingLogReader,
       LogEscapes, HalfClosers, UnreadableProtobufs, ForeignPages, HighPriority,
       HostileForms)
