"""TLS on the ports of clients: what the usual clients get, how certificates change, and what peers
that break off or speak something else cost others."""

import concurrent.futures
import contextlib
import itertools
import ssl
import subprocess
import threading
import time

import grpc
import httpx
import openai
import pytest

from flotilla_server import LONG, MODEL, SANITIZED, Server, binary, model_path, wait_until
from http_attacks_test import answer_of, connect
from security_files import Authority, openssl, write

HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello
MIB = 1 << 20


class SecureServer(Server):
    """A server with a certificate, and a health port without one."""

    def __init__(self, folder, authority, *flags):
        self.authority = authority
        super().__init__(folder, "--health-port", "0", "--kv-blocks", "256", *flags)
        self.url = self.url.replace("http:", "https:")
        self.http = self.client()

    def client(self, pair=None):
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if pair:
            context.load_cert_chain(*map(str, pair))
        return httpx.Client(base_url=self.url, timeout=60, verify=context)

    def channel(self, pair=None):
        pem = [path.read_bytes() for path in pair] if pair else [None, None]
        return grpc.secure_channel(self.grpc_address, grpc.ssl_channel_credentials(
            self.authority.certificate.read_bytes(), pem[1], pem[0]))

    def metrics_page(self):
        return httpx.get(f"http://127.0.0.1:{self.ports['health']}/metrics").text


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "public")


@pytest.fixture(scope="module")
def secure(tmp_path_factory, authority):
    pem, key = authority.issue("server")
    with SecureServer(tmp_path_factory.mktemp("secure"), authority, "--api-tls-cert", str(pem),
                      "--api-tls-key", str(key)) as one:
        yield one


def health_of(channel):
    """The status of a health check, which needs no key."""
    try:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


def test_openai_sdk(secure):
    with openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", max_retries=0,
                       http_client=secure.client()) as client:
        assert client.models.list().data[0].id == MODEL
        ask = dict(model=MODEL, messages=[{"role": "user", "content": "Count to five."}],
                   max_tokens=24, temperature=0)
        whole = client.chat.completions.create(**ask).choices[0].message.content
        pieces = [chunk.choices[0].delta.content or ""
                  for chunk in client.chat.completions.create(**ask, stream=True) if chunk.choices]
        assert len(pieces) > 5 and "".join(pieces) == whole


def test_grpcio(secure, pb):
    with secure.channel() as channel:
        assert health_of(channel) == grpc.StatusCode.OK
        request = pb.messages.GenerateRequest(model=MODEL, text="Once upon a time", max_tokens=8)
        text = "".join(delta.text for answer in pb.services.InferenceStub(channel).Generate(
            request, timeout=60) for delta in answer.deltas)
        assert text


def test_a_client_that_does_not_trust_the_certificate_leaves(secure):
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secure.url}/health")


def test_loadtest(secure):
    for url, *more in ((f"https://localhost:{secure.ports['http']}",),
                       (f"https://localhost:{secure.ports['grpc']}", "--grpc")):
        done = subprocess.run(
            [binary(), "loadtest", url, *more, "--model", MODEL, "--requests", "4", "--output", "4",
             "--ca-file", str(secure.authority.certificate), "--json", "/dev/stdout"],
            capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert '"failed": 0' in done.stdout or '"failures": {}' in done.stdout, done.stdout


def test_plaintext_gets_a_hint_and_an_end(secure):
    """The socket ends, without a reset that could overtake the hint."""
    failed = secure.metric("flotilla_router_tls_handshakes_total", result="failed")
    answer = httpx.get(f"http://127.0.0.1:{secure.ports['http']}/health")
    assert answer.status_code == 400 and "https://" in answer.json()["error"]["message"]
    with connect(secure.ports["http"]) as one:
        one.sendall(b"\x00" * 4096)
        assert answer_of(one).startswith("HTTP/1.1 400 ")
    assert secure.metric("flotilla_router_tls_handshakes_total", result="failed") == failed + 2
    with grpc.insecure_channel(secure.grpc_address) as channel:
        assert health_of(channel) == grpc.StatusCode.UNAVAILABLE
    assert secure.http.get("/health").status_code == 200


def test_the_health_port_is_not_encrypted(secure):
    for path in ("/health", "/ready", "/metrics"):
        url = f"http://127.0.0.1:{secure.ports['health']}{path}"
        assert httpx.get(url).status_code == 200
        assert secure.http.get(path).status_code == 200


# --- Handshakes that hold others up ------------------------------------------


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_handshakes_that_never_end_delay_nobody(secure, port):
    before = secure.look()
    with contextlib.ExitStack() as stack:
        for i in range(600):
            one = stack.enter_context(connect(secure.ports[port]))
            one.sendall(HALF_A_HELLO if i % 2 else HALF_A_HELLO[:1])
        slowest = 0
        for _ in range(5):
            began = time.monotonic()
            with secure.client() as client, secure.channel() as channel:
                assert client.get("/health").status_code == 200
                assert health_of(channel) == grpc.StatusCode.OK
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < (20 if SANITIZED else 2)
        assert secure.look().rss_bytes < before.rss_bytes + (8 if SANITIZED else 1) * 64 * MIB
        if LONG:
            wait_until(lambda: secure.look().descriptors <= before.descriptors + 8,
                       "the handshakes are given up", 20)


# --- Certificates that change ------------------------------------------------


def shown(port):
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=20)


def certificate(pem):
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(pem.read_text()))


def test_certificates_change_under_open_connections(tmp_path, authority, pb):
    """Connections go on with the old certificate, new ones get the new one, and one that cannot
    be used changes nothing."""
    pems = [authority.issue(f"n{i}", days=2 + i) for i in range(3)]
    pem, key = tmp_path / "x.pem", tmp_path / "x.key"

    def use(certificate_of, key_of):
        write(key, pems[key_of][1].read_text())
        write(pem, pems[certificate_of][0].read_text())

    def wait_shown(which):
        for port in ("http", "grpc"):
            wait_until(lambda: shown(server.ports[port]) == certificate(pems[which][0]),
                       f"{port} shows certificate {which}")

    def reads(result):
        return server.metric("flotilla_router_tls_certificate_reads_total", result=result)

    use(0, 0)
    with SecureServer(tmp_path, authority, "--api-tls-cert", str(pem), "--api-tls-key",
                      str(key)) as server, server.channel() as channel, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        wait_shown(0)
        expiry = server.metric("flotilla_router_tls_certificate_expiry_timestamp_seconds")
        assert health_of(channel) == grpc.StatusCode.OK
        ask = dict(model=MODEL, prompt="Once upon a time", max_tokens=3000, ignore_eos=True,
                   stream=True)
        with server.http.stream("POST", "/v1/completions", json=ask) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            read, enough = [], threading.Event()
            reading = pool.submit(lambda: read.extend(
                itertools.takewhile(lambda _: not enough.is_set(), lines)))
            use(1, 1)
            wait_shown(1)
            assert reads("taken") == 1
            use(2, 0)  # the key is of another certificate
            wait_until(lambda: reads("refused") == 1, "it is refused")
            wait_until(lambda: "key: it is of another certificate" in server.log_text(), "it is told")
            for port in ("http", "grpc"):
                assert shown(server.ports[port]) == certificate(pems[1][0])
            assert health_of(channel) == grpc.StatusCode.OK
            use(2, 2)
            wait_shown(2)
            count = len(read)
            wait_until(lambda: len(read) > count + 3 or reading.done(), "the stream goes on")
            assert not reading.done(), "the stream is too short to tell"
            enough.set()
            reading.result()
        assert reads("taken") == 2
        assert server.metric("flotilla_router_tls_certificate_expiry_timestamp_seconds") \
            > expiry + 80_000
        assert "PRIVATE KEY" not in server.log_text()


# --- Clients' certificates ---------------------------------------------------


def test_clients_may_need_certificates(tmp_path, authority):
    ours, theirs = Authority(tmp_path, "clients"), Authority(tmp_path, "others")
    mine, foreign = ours.issue("client"), theirs.issue("foreign")
    pem, key = authority.issue("server-of-clients")
    with SecureServer(tmp_path, authority, "--api-tls-cert", str(pem), "--api-tls-key", str(key),
                      "--api-tls-ca", str(ours.certificate)) as server:
        with server.client(mine) as client, server.channel(mine) as channel:
            assert client.get("/v1/models").status_code == 200
            assert health_of(channel) == grpc.StatusCode.OK
        for pair in (None, foreign):
            with server.client(pair) as client, server.channel(pair) as channel:
                with pytest.raises(httpx.TransportError):
                    client.get("/v1/models")
                assert health_of(channel) == grpc.StatusCode.UNAVAILABLE
        assert httpx.get(f"http://127.0.0.1:{server.ports['health']}/health").status_code == 200
        # Another authority holds for new connections.
        write(ours.certificate, theirs.certificate.read_text())

        def admits(pair):
            with server.client(pair) as client, server.channel(pair) as channel, \
                    contextlib.suppress(httpx.TransportError):
                return client.get("/v1/models").status_code == 200 \
                    and health_of(channel) == grpc.StatusCode.OK
            return False
        wait_until(lambda: admits(foreign), "the other authority is trusted")
        assert not admits(mine)


# --- Files that cannot be used -----------------------------------------------


@pytest.fixture(name="pair", scope="module")
def a_pair(authority):
    return authority.issue("pair")


def start(*flags):
    done = subprocess.run([binary(), "serve", "--model", model_path(), "--http-port", "0",
                           "--grpc-port", "0", "--kv-blocks", "64", *map(str, flags)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr.splitlines()[-1] if done.returncode == 1 else done.stderr.splitlines()[0]


def test_a_server_does_not_start_with_files_that_cannot_be_used(pair, authority, tmp_path):
    pem, key = pair
    other = authority.issue("another")[1]
    locked = tmp_path / "locked.key"
    openssl("rsa", "-aes256", "-passout", "pass:x", "-in", make_rsa(tmp_path, 2048)[1],
            "-out", locked)
    weak = make_rsa(tmp_path, 512)
    for flags, why in (
            (["--api-tls-cert", pem, "--api-tls-key", other], "key: it is of another certificate"),
            (["--api-tls-cert", pem, "--api-tls-key", locked], "without a passphrase"),
            (["--api-tls-cert", pem, "--api-tls-key", tmp_path / "no"], f"cannot open {tmp_path}/no"),
            (["--api-tls-cert", weak[0], "--api-tls-key", weak[1]], "certificate: ee key too small"),
            (["--api-tls-cert", pem, "--api-tls-key", key, "--api-tls-ca", key],
             "there is no certificate in PEM")):
        assert why in start(*flags), flags


def make_rsa(folder, bits):
    pem, key = folder / f"rsa{bits}.pem", folder / f"rsa{bits}.key"
    openssl("req", "-x509", "-newkey", f"rsa:{bits}", "-noenc", "-days", "1", "-subj", "/CN=rsa",
            "-keyout", key, "-out", pem)
    return pem, key
