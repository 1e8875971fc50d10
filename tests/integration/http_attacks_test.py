"""What strangers can do to a server by HTTP alone: they can hold memory, connections and
descriptors.

Each attack runs against the real program; the test watches its memory and answers meanwhile."""

import contextlib
import http.client
import json
import pathlib
import resource
import select
import socket
import time

import grpc
import httpx
import pytest

from flotilla_server import MODEL, SANITIZED, Program, Server, wait_until
from security_files import new_secret, write

MIB = 1 << 20
ENDLESS_BYTES = 256 * MIB  # commit 639e0f4 keeps them all
FACTOR = 8 if SANITIZED else 1  # sanitizers keep freed memory, and shadow memory for all
KEY = "a-key-" + new_secret()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyed")
    keys = write(folder / "keys", f"alice {KEY}\n")
    with Server(folder, "--api-keys-file", str(keys), "--health-port", "0",
                "--allowed-hosts", "proxy.example, other.example") as one:
        yield one


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def send_until_answered(one, data, limit):
    """The bytes that the server took before it answered or ended the connection."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < limit:
            readable, writable, _ = select.select([one], [one], [], 20)
            if readable:
                break
            assert writable, "neither read nor refused"
            sent += one.send(data[:limit - sent])
    return sent


def answer_of(one):
    """All bytes until the server closes the connection; "" after a reset."""
    text = b""
    with contextlib.suppress(ConnectionError):
        while part := one.recv(65536):
            text += part
    return text.decode(errors="replace")


@pytest.mark.parametrize("path", ["/health", "/v1/completions"])
@pytest.mark.parametrize("begin,more", [("1;x=", "y"), ("", "0"), ("0\r\nx: ", "y")],
                         ids=["extension", "zeros", "trailer"])
def test_what_never_ends_takes_no_memory(keyed, path, begin, more):
    before = keyed.look().rss_bytes
    with connect(keyed.ports["http"]) as one:
        one.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
                    f"transfer-encoding: chunked\r\n\r\n{begin}".encode())
        sent = send_until_answered(one, more.encode() * MIB, ENDLESS_BYTES)
        assert sent < 64 * MIB, "all of it was taken"
        assert answer_of(one)[:12] in ("HTTP/1.1 400", "HTTP/1.1 405", "")
    assert keyed.look().rss_bytes < before + FACTOR * 32 * MIB
    assert httpx.get(f"{keyed.url}/health").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/completions"])
def test_bodies_that_are_held_take_bounded_memory(keyed, path):
    before = keyed.look().rss_bytes
    head = (f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
            "content-length: 4194304\r\n\r\n").encode()
    part = b"x" * (4 * MIB - 1)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            one = stack.enter_context(connect(keyed.ports["http"]))
            one.sendall(head)
            send_until_answered(one, part, len(part))
        assert keyed.look().rss_bytes < before + FACTOR * 64 * MIB
        answer = httpx.post(f"{keyed.url}/v1/completions", timeout=60,
                            headers={"authorization": f"Bearer {KEY}"},
                            json={"model": MODEL, "prompt": "hi", "max_tokens": 2})
        assert answer.status_code == 200
    assert httpx.get(f"{keyed.url}/health").status_code == 200


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    """A server that has 1,024 descriptors, which it cannot change."""
    with Server(tmp_path_factory.mktemp("poor"), "--health-port", "0", "--max-connections", "100000",
                prefix=("prlimit", "--nofile=1024:1024")) as one:
        assert one.metric("process_max_fds") == 1024
        yield one


def backlog(port):
    """The connections to `port` that the server has not accepted yet."""
    waiting = 0
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, queues = line.split()[:5]
            if state == "0A" and int(local.rsplit(":", 1)[1], 16) == port:
                waiting += int(queues.split(":")[1], 16)
    return waiting


@contextlib.contextmanager
def idle_sockets(port, count=1500):
    """Opens connections that send nothing, and waits until the server has accepted all of them.
    Those that it closes stay open here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * count), hard))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(connect(port)) for _ in range(count)]
        wait_until(lambda: backlog(port) == 0, "the backlog is empty")
        yield sockets
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def asked(server):
    """The seconds that each of the interfaces takes to answer a new client, which comes again if there are
    too many connections that are younger than 0.25 s."""
    times = {}

    def http(method, url, **fields):
        for _ in range(5):
            answer = httpx.request(method, url, timeout=20, **fields)
            if answer.status_code != 503:
                break
            assert answer.headers["retry-after"] and "too many connections" in answer.text
            time.sleep(0.1)
        assert answer.status_code == 200, answer.text

    def timed(what, ask):
        began = time.monotonic()
        ask()
        times[what] = time.monotonic() - began

    def get(port):
        http("GET", f"http://127.0.0.1:{port}/health")

    def complete():
        http("POST", f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "hi", "max_tokens": 1})

    def grpc_health():
        with grpc.insecure_channel(server.grpc_address) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check",
                                        request_serializer=bytes, response_deserializer=bytes)
            check(b"", timeout=20)

    timed("health", lambda: get(server.ports["http"]))
    timed("health port", lambda: get(server.ports["health"]))
    timed("completion", complete)
    timed("grpc", grpc_health)
    return times


def test_idle_sockets_silence_nobody(poor):
    before = poor.look().descriptors
    most = 10 if SANITIZED else 2
    for port in ("http", "health", "grpc"):
        with idle_sockets(poor.ports[port]):
            for _ in range(3):
                times = asked(poor)
                assert max(times.values()) < most, (port, times)
    wait_until(lambda: poor.look().descriptors <= before + 4, "descriptors are as before")
    assert max(asked(poor).values()) < most


def test_a_process_takes_all_descriptors_that_it_may(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 4096
    one = Program(tmp_path, "node", prefix=["prlimit", "--nofile=256:4096"])
    try:
        metrics = httpx.get(f"http://127.0.0.1:{one.ports['metrics']}/metrics").text
        assert "\nprocess_max_fds 4096\n" in metrics
    finally:
        one.stop()


def test_the_health_port_shows_health_alone(keyed):
    with httpx.Client(base_url=f"http://127.0.0.1:{keyed.ports['health']}") as health:
        assert f"health=127.0.0.1:{keyed.ports['health']}" in keyed.ready_line
        for path in ("/health", "/ready", "/metrics"):
            assert health.get(path).status_code == 200
            assert health.head(path).status_code == 200
        for path in ("/v1/models", "/v1/completions", "/nothing", "/"):
            assert health.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code == 404
        assert health.post("/v1/completions", json={}).status_code == 404


def test_a_loopback_address_answers_to_its_names_and_to_those_it_was_given(keyed, server):
    for url, host, status in ((keyed.url, "other.example:443", 200), (keyed.url, "localhost", 200),
                              (keyed.url, "page.example", 403), (server.url, "127.0.0.1", 200),
                              (server.url, "proxy.example", 403)):
        answer = httpx.get(f"{url}/health", headers={"host": host})
        assert answer.status_code == status, (host, answer.text)
    assert "--allowed-hosts" in answer.json()["error"]["message"]


def test_a_peer_that_half_closes_gets_its_answer(server):
    body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 64,
                       "ignore_eos": True, "temperature": 0}).encode()
    with connect(server.ports["http"]) as one:
        one.settimeout(120)
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
                    b"content-length: %d\r\n\r\n" % len(body) + body)
        one.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(one)
        answer.begin()  # skips interim answers, as clients do
        assert answer.status == 200
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 64


@pytest.mark.parametrize("stream", [False, True])
def test_a_peer_that_closes_cancels_its_request(server, stream):
    server.wait_idle()
    body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8000,
                       "ignore_eos": True, "stream": stream}).encode()
    cancelled = server.metric("flotilla_router_cancelled_total", by="client")
    with connect(server.ports["http"]) as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
                    b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: server.used_blocks() > 0, "the request runs")
    wait_until(lambda: server.metric("flotilla_router_cancelled_total", by="client") > cancelled,
               "it is cancelled", seconds=10)
    server.wait_idle()
