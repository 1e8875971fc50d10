"""Access control: every route and every RPC of a fleet of processes, with every wrong proof.

The fleet's streams need its secret and a certificate of its authority; clients need a key.
"""

import concurrent.futures
import contextlib
import json
import pathlib
import re
import signal
import subprocess
import time
import types

import grpc
import httpx
import openai
import pytest
from google.protobuf import descriptor_pb2

from flotilla_server import (MODEL, ROOT, Fleet, Program, Server, binary, json_lines,
                             model_path, wait_until)
from security_files import Authority, new_secret, write

ANYBODY = {"/health", "/ready", "/metrics"}
ANYBODYS_RPCS = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}
KEY, OTHER_KEY = "alices-key-" + new_secret(), "bobs-key-" + new_secret()
BOBS_KEY = "one-more-key-" + new_secret()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The secrets, keys and certificates of the fleet, and those of another fleet."""
    folder = tmp_path_factory.mktemp("secrets")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    return types.SimpleNamespace(
        folder=folder, ours=ours, theirs=theirs, secret=new_secret(), other_secret=new_secret(),
        member=ours.issue("member"), stranger=theirs.issue("stranger"))


def internal_flags(folder, secret, authority, name):
    pem, key = authority.issue(name)
    return ["--fleet-secret-file", str(write(folder / f"{name}.secret", secret + "\n")),
            "--tls-cert", str(pem), "--tls-key", str(key), "--tls-ca", str(authority.certificate)]


def secure_fleet(directory, files):
    flags = {role: internal_flags(files.folder, files.secret, files.ours, role)
             for role in Fleet.ROLES}
    keys = write(files.folder / "keys", f"# who may\nalice {KEY}\nbob {OTHER_KEY}\n")
    flags["router"] += ["--api-keys-file", str(keys)]
    return Fleet(directory, extra=flags)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, files):
    with secure_fleet(tmp_path_factory.mktemp("fleet"), files) as one:
        yield one


def bearer(key):
    return {"authorization": f"Bearer {key}"}


# --- HTTP --------------------------------------------------------------------


def routes(fleet):
    """(method, path) of each route in the route table itself."""
    page = fleet.http.get("/", headers=bearer(KEY))
    assert page.status_code == 200
    return [tuple(line.split(" ")) for line in page.text.splitlines()[2:]]


def test_the_manual_names_every_route(fleet):
    manual = (ROOT / "docs" / "api.md").read_text()
    named = set(re.findall(r"`(GET|POST|DELETE) (/[^`]*)`", manual))
    assert set(routes(fleet)) == named


def wrong_headers(files):
    return {"none": {}, "empty": {"authorization": ""}, "no key": {"authorization": "Bearer"},
            "another key": bearer(KEY[:-1] + ("0" if KEY[-1] != "0" else "1")),
            "a part": bearer(KEY[:-1]), "more": bearer(KEY + "x"),
            "no scheme": {"authorization": KEY}, "basic": {"authorization": f"Basic {KEY}"},
            "a name": bearer("alice"), "the fleet's secret": bearer(files.secret),
            "another header": {"x-api-key": KEY},
            "two": [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]}


def test_every_route_needs_a_key(fleet, files):
    walked = routes(fleet)
    assert len(walked) == 21
    for method, path in walked + [("GET", "/no/such"), ("POST", "/v1/no"), ("OPTIONS", "/"),
                                  ("DELETE", "/v1/models"), ("GET", "/metrics/"),
                                  ("GET", "/health/../v1/models"), ("GET", "//health")]:
        target = path.replace("{id}", MODEL)
        body = b"{}" if method == "POST" else None
        for what, headers in wrong_headers(files).items():
            answer = fleet.http.request(method, target, headers=headers, content=body)
            if path in ANYBODY:
                assert answer.status_code == 200, (path, what)
                continue
            assert answer.status_code == 401, (method, path, what, answer.text)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in answer.text
        answer = fleet.http.request(method, target, headers=bearer(KEY), content=body)
        assert answer.status_code != 401, (method, path)


def test_a_body_without_a_key_is_not_read(fleet):
    """The refusal comes before the client sends a byte of the body."""
    import socket
    with socket.create_connection(("127.0.0.1", fleet.router.ports["http"]), timeout=20) as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000000\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 401 ")


# --- gRPC --------------------------------------------------------------------


@pytest.fixture(scope="module")
def rpcs(tmp_path_factory):
    """The paths of all methods of all services in proto/, and of gRPC's own reflection."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    out = tmp_path_factory.mktemp("descriptors") / "all"
    sources = sorted(str(path.relative_to(ROOT / "proto"))
                     for path in (ROOT / "proto").rglob("*.proto"))
    assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}",
                        f"--descriptor_set_out={out}", *sources]) == 0
    described = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    found = [f"/{file.package}.{service.name}/{method.name}"
             for file in described.file for service in file.service for method in service.method]
    assert len(found) >= 12
    services = {path.split("/")[1] for path in found}
    assert services >= {"flotilla.v1.Inference", "flotilla.v1.Scheduler", "flotilla.v1.WorkerGroup",
                        "flotilla.v1.Host", "grpc.health.v1.Health"}
    return found + ["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                    "/flotilla.v1.Scheduler/NoSuchMethod", "/no.Such/Method"]


def call(channel, path, metadata=()):
    """The code with which an empty request ends, or OK as soon as anything comes back."""
    stream = channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=20)
    try:
        next(stream, None)
        stream.cancel()
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


def tls(authority, pair=None):
    key, pem = (pair[1].read_bytes(), pair[0].read_bytes()) if pair else (None, None)
    return grpc.ssl_channel_credentials(authority.certificate.read_bytes(), key, pem)


@contextlib.contextmanager
def dial(port, credentials=None):
    address = f"127.0.0.1:{port}"
    with (grpc.secure_channel(address, credentials) if credentials
          else grpc.insecure_channel(address)) as channel:
        yield channel


def bearer_metadata(secret):
    return [("authorization", f"Bearer {secret}")]


@pytest.fixture(scope="module")
def host(tmp_path_factory, files):
    """A node, which lends its machine to worker groups."""
    one = Program(tmp_path_factory.mktemp("node"), "node",
                  *internal_flags(files.folder, files.secret, files.ours, "node"))
    yield one
    one.stop()


@pytest.mark.parametrize("role", ["worker", "scheduler", "node"])
def test_every_internal_rpc_needs_certificate_and_secret(fleet, host, files, rpcs, role):
    port = {"worker": fleet.worker, "scheduler": fleet.scheduler, "node": host}[role].ports["listen"]
    ours = tls(files.ours, files.member)
    right = bearer_metadata(files.secret)
    strangers = {
        "plaintext": (None, ()),
        "plaintext, right secret": (None, right),
        "no certificate": (tls(files.ours), right),
        "another authority's certificate": (tls(files.ours, files.stranger), right),
        "another authority": (tls(files.theirs, files.stranger), right),
        "no secret": (ours, ()),
        "another cluster's secret": (ours, bearer_metadata(files.other_secret)),
        "a client's key": (ours, bearer_metadata(KEY)),
        "twice": (ours, right + right),
    }
    before = fleet.scheduler.metric("flotilla_worker_groups_lost_total")
    for what, (credentials, metadata) in strangers.items():
        wanted = grpc.StatusCode.UNAUTHENTICATED if credentials is ours \
            else grpc.StatusCode.UNAVAILABLE
        with dial(port, credentials) as channel:
            for path in rpcs:
                assert call(channel, path, metadata) == wanted, (what, path)
    with dial(port, ours) as channel:
        for path in rpcs:
            code = call(channel, path, right)
            assert code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE), path
            service = {"worker": "WorkerGroup", "scheduler": "Scheduler", "node": "Host"}[role]
            served = path.startswith(f"/flotilla.v1.{service}/") and "NoSuch" not in path
            assert (code != grpc.StatusCode.UNIMPLEMENTED) == served, (path, code)
    assert fleet.scheduler.metric("flotilla_worker_groups_lost_total") == before


def test_every_public_rpc_needs_a_key(fleet, files, rpcs):
    wrong = [(), bearer_metadata(KEY + "x"), bearer_metadata(files.secret),
             [("authorization", KEY)], [("x-api-key", KEY)], bearer_metadata(KEY) * 2]
    with dial(fleet.router.ports["grpc"]) as channel:
        for path in rpcs:
            for metadata in wrong:
                refused = call(channel, path, metadata) == grpc.StatusCode.UNAUTHENTICATED
                assert refused == (path not in ANYBODYS_RPCS), (path, metadata)
            assert call(channel, path, bearer_metadata(KEY)) != grpc.StatusCode.UNAUTHENTICATED


def test_the_secure_fleet_serves(fleet):
    line = json_lines("greedy.jsonl")[0]
    answer = fleet.http.post("/v1/completions", headers=bearer(KEY), json=dict(
        model=MODEL, prompt=line["prompt_ids"], max_tokens=8, temperature=0, return_token_ids=True))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == line["greedy_ids"][:8]


def test_the_owner_of_a_key_is_the_tenant(fleet):
    """Requests of one tenant share prefixes; requests of different tenants do not."""
    def cached(key):
        answer = fleet.http.post("/v1/completions", headers=bearer(key), json=dict(
            model=MODEL, prompt=list(range(1000, 1200)), max_tokens=1))
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached(KEY) == 0
    assert cached(OTHER_KEY) == 0
    assert cached(KEY) > 0


# --- Changes while it runs ---------------------------------------------------


def test_keys_are_replaced_while_connections_stay(fleet, files):
    keys = files.folder / "keys"
    before = keys.read_text()
    fresh = "fresh-key-" + new_secret()

    def status(key):
        return fleet.http.get("/v1/models", headers=bearer(key)).status_code
    try:
        write(keys, f"alice {fresh}\nbob {OTHER_KEY}\n")
        wait_until(lambda: status(KEY) == 401, "the old key is refused")
        assert (status(fresh), status(OTHER_KEY)) == (200, 200)
        write(keys, "this is no file of keys")
        wait_until(lambda: status(fresh) == 200 and
                   "a file of secrets cannot be used" in fleet.router.log_text(), "it is logged")
        assert (status(fresh), status(KEY)) == (200, 401)
    finally:
        write(keys, before)
        wait_until(lambda: status(KEY) == 200, "the old key is back")


def rotate(fleet, files):
    """Changes to a new secret and a new authority, step by step, as docs/operations.md says."""
    next_secret, next_authority = new_secret(), Authority(files.folder, "next")
    probe, next_probe = files.ours.issue("probe"), next_authority.issue("next-probe")

    def write_secrets(*lines):
        for role in Fleet.ROLES:
            write(files.folder / f"{role}.secret", "".join(f"{line}\n" for line in lines))

    def wait_taken(authority, pair, secret, code):
        for role in ("worker", "scheduler"):
            def answer():
                with dial(getattr(fleet, role).ports["listen"], tls(authority, pair)) as channel:
                    return call(channel, "/x/y", bearer_metadata(secret))
            wait_until(lambda: answer() == code, f"{role} answers {code}")

    both = files.ours.certificate.read_text() + next_authority.certificate.read_text()
    write_secrets(files.secret, next_secret)
    write(files.ours.certificate, both)
    wait_taken(files.ours, next_probe, next_secret, grpc.StatusCode.UNIMPLEMENTED)
    write_secrets(next_secret, files.secret)
    for role in Fleet.ROLES:
        pem, key = next_authority.issue(f"next-{role}", days=2)
        write(files.folder / f"{role}.key", key.read_text())
        write(files.folder / f"{role}.pem", pem.read_text())
    wait_taken(next_authority, next_probe, next_secret, grpc.StatusCode.UNIMPLEMENTED)
    write_secrets(next_secret)
    write(files.ours.certificate, next_authority.certificate.read_text())
    wait_taken(next_authority, probe, next_secret, grpc.StatusCode.UNAVAILABLE)
    wait_taken(next_authority, next_probe, files.secret, grpc.StatusCode.UNAUTHENTICATED)


def certificate_ends(fleet):
    """When the certificate expires, by each process's metrics."""
    ends = [getattr(fleet, role).metric("flotilla_tls_certificate_expiry_timestamp_seconds")
            for role in Fleet.ROLES]
    assert all(0 < end - time.time() < 3 * 86400 for end in ends)
    return ends


class Endless:
    """A streamed completion of several choices, which is read until it has enough tokens."""

    body = dict(model=MODEL, prompt="Once upon a time", ignore_eos=True, seed=7, n=4,
                return_token_ids=True)

    def __init__(self, fleet):
        self.fleet, self.tokens, self.enough = fleet, {}, False

    def run(self):
        with httpx.stream("POST", f"{self.fleet.url}/v1/completions", headers=bearer(KEY),
                          json=dict(self.body, max_tokens=3500, stream=True),
                          timeout=60) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if self.enough:
                    return
                assert line != "data: [DONE]", "it ended too early to tell"
                if line.startswith("data: "):
                    event = json.loads(line[len("data: "):])
                    assert "error" not in event, event
                    for choice in event["choices"]:
                        self.tokens.setdefault(choice["index"], []).extend(choice["token_ids"])

    def count(self):
        return min(map(len, list(self.tokens.values())), default=0)

    def wait_for(self, count, running):
        wait_until(lambda: self.count() >= count or running.done(), f"{count} tokens")


def test_secret_and_certificates_change_under_a_running_stream(tmp_path, files):
    """No token is lost, neither by the change nor by connections that are made after it."""
    own = types.SimpleNamespace(**{**vars(files), "folder": tmp_path})
    own.ours = Authority(tmp_path, "ours")
    with secure_fleet(tmp_path, own) as fleet, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream = Endless(fleet)
        running = pool.submit(stream.run)
        try:
            stream.wait_for(5, running)
            ends = certificate_ends(fleet)
            rotate(fleet, own)
            assert all(later > end + 80_000 for end, later in zip(ends, certificate_ends(fleet)))
            assert fleet.router.metric("flotilla_router_retries_total") == 0
            fleet.scheduler.kill(signal.SIGKILL)  # so that all processes connect again
            fleet.start("scheduler")
            stream.wait_for(stream.count() + 20, running)
        finally:
            stream.enough = True
            running.result()
        assert fleet.router.metric("flotilla_router_retries_total") > 0
        count = stream.count()
        print("tokens of each choice:", count)
        again = fleet.http.post("/v1/completions", headers=bearer(KEY),
                                json=dict(Endless.body, max_tokens=count))
        assert [choice["token_ids"] for choice in again.json()["choices"]] \
            == [stream.tokens[i][:count] for i in range(4)]


def test_another_clusters_scheduler_is_refused_and_says_so_once(tmp_path, files):
    """The scheduler keeps trying, slowly, and works once it has the right secret."""
    wrong = write(tmp_path / "wrong", files.other_secret + "\n")
    flags = {role: ["--fleet-secret-file", str(write(tmp_path / "right", files.secret + "\n"))]
             for role in ("worker", "router")}
    flags["scheduler"] = ["--fleet-secret-file", str(wrong)]

    class Mended(Fleet):
        def start(self, role, wait=True):
            super().start(role, wait)
            if role == "router":
                wait_until(lambda: "the peer refuses this process" in self.scheduler.log_text(),
                           "it is told")
                wait_until(lambda: "were refused" in self.worker.log_text(), "the worker, too")
                assert self.scheduler.ready_line is None
                write(wrong, files.secret + "\n")

    with Mended(tmp_path, extra=flags) as fleet:  # all processes become ready
        assert fleet.scheduler.log_text().count("the peer refuses this process") == 1
        answer = fleet.http.post("/v1/completions", json=dict(model=MODEL, prompt="x",
                                                              max_tokens=1))
        assert answer.status_code == 200, answer.text


# --- The rest ----------------------------------------------------------------


@pytest.mark.parametrize("flags, why", [
    (["--host", "0.0.0.0"], "--insecure-internal"),
    (["--host", "::"], "--insecure-internal"),
    (["--tls-cert", "x.pem"], "go together"),
    (["--fleet-secret-file", "/no/such/file"], "cannot open /no/such/file"),
    (["--fleet-secret-file", "/dev/null"], "not a regular file"),
])
def test_what_would_be_open_does_not_start(flags, why):
    done = subprocess.run([binary(), "scheduler", "--worker", "127.0.0.1:1", *flags],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert why in done.stderr


def test_one_process_takes_keys_too(tmp_path):
    keys = str(write(tmp_path / "keys", f"alice {KEY}\n"))
    with Server(tmp_path, "--api-keys-file", keys) as server:
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/v1/models", headers=bearer(KEY)).status_code == 200
        with dial(server.ports["grpc"]) as channel:
            assert call(channel, "/flotilla.v1.Inference/ListModels") \
                == grpc.StatusCode.UNAUTHENTICATED
    done = subprocess.run([binary(), "serve", "--model", model_path(), "--api-keys-file", keys,
                           "--tenant-header", "x-tenant", "--http-port", "0", "--grpc-port", "0"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--tenant-header and --api-keys-file" in done.stderr


def test_a_key_has_a_highest_priority(tmp_path, pb):
    """The limit is the same over both frontends and follows changes of the file."""
    keys = tmp_path / "keys"
    write(keys, f"alice {KEY} max-priority=0\nbob {OTHER_KEY}\n")

    def refusals(server, stub, key, priority):
        """The refusal of each frontend; None: the frontend answers."""
        answer = server.http.post("/v1/completions", headers=bearer(key), json=dict(
            model=MODEL, prompt="hi", max_tokens=1, priority=priority))
        assert answer.status_code in (200, 400), answer.text
        error = answer.json().get("error", {})
        assert answer.status_code == 200 or error["param"] == "priority", answer.text
        request = pb.messages.GenerateRequest(model=MODEL, text="hi", priority=priority)
        request.max_tokens = 1
        try:
            list(stub.Generate(request, metadata=bearer_metadata(key), timeout=60))
            return error.get("message"), None
        except grpc.RpcError as refused:
            assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT, refused
            return error.get("message"), refused.details()

    with Server(tmp_path, "--api-keys-file", str(keys)) as server, \
            dial(server.ports["grpc"]) as channel:
        stub = pb.services.InferenceStub(channel)
        too_high = "priority is 100; this key may use at most 0"
        assert refusals(server, stub, KEY, 100) == (too_high, too_high)
        for key, priority in ((KEY, 0), (KEY, -100), (OTHER_KEY, 100)):
            assert refusals(server, stub, key, priority) == (None, None)
        write(keys, f"alice {KEY}\nbob {OTHER_KEY} max-priority=-5\n")
        wait_until(lambda: refusals(server, stub, KEY, 100) == (None, None), "alice may")
        too_high = "priority is 0; this key may use at most -5"
        wait_until(lambda: refusals(server, stub, OTHER_KEY, 0) == (too_high, too_high),
                   "bob may not")
        write(keys, f"alice {KEY} max-priority=high\n")  # changes nothing but the log

        def told():
            assert refusals(server, stub, KEY, 100) == (None, None)
            return "max-priority must be a whole number" in server.log_text()
        wait_until(told, "the log says what is wrong with the file")


def test_nothing_secret_is_told(fleet, files):
    """After all the tests above, no secret is in the logs or in the metrics."""
    told = "".join(getattr(fleet, role).log_text() + getattr(fleet, role).metrics_page()
                   for role in Fleet.ROLES)
    assert "were refused" in told and 'reason="unauthenticated"' in told
    for secret in (KEY, OTHER_KEY, files.secret, files.other_secret, KEY[11:]):
        assert secret not in told
    assert "PRIVATE KEY" not in told


# --- Classes and limits of keys ----------------------------------------------


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A server whose keys have classes and limits, and a page that may call it."""
    folder = tmp_path_factory.mktemp("limited")
    keys = write(folder / "keys", f"root {KEY} admin\nalice {OTHER_KEY} user max-concurrent=1\n"
                                  f"bob {BOBS_KEY} tokens-per-minute=20\n")
    with Server(folder, "--api-keys-file", str(keys), "--kv-blocks", "256",
                "--cors-origin", "https://chat.example") as one:
        yield one


def openai_client(server, key):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.ports['http']}/v1", api_key=key,
                         max_retries=0, timeout=60)


def test_a_limit_of_running_requests_is_named_and_an_admin_ends_one(limited, pb):
    with openai_client(limited, OTHER_KEY) as alice:
        stream = alice.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=2000, temperature=0, stream=True,
            extra_body={"ignore_eos": True})
        running = next(iter(stream)).id
        with pytest.raises(openai.RateLimitError) as refused:
            alice.completions.create(model=MODEL, prompt="hi", max_tokens=1)
        assert refused.value.code == "rate_limit_exceeded"
        assert "the limit max-concurrent=1 of 'alice' is reached" in refused.value.message
        assert refused.value.response.headers["retry-after"] == "1"
        with grpc.insecure_channel(f"127.0.0.1:{limited.ports['grpc']}") as channel:
            stub = pb.services.InferenceStub(channel)
            with pytest.raises(grpc.RpcError) as over_grpc:
                list(stub.Generate(
                    pb.messages.GenerateRequest(model=MODEL, text="hi", max_tokens=1), timeout=60,
                    metadata=[("authorization", f"Bearer {OTHER_KEY}")]))
        assert over_grpc.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max-concurrent=1" in over_grpc.value.details()
        # Another name is not held up, and only an admin may end what is not its own.
        with openai_client(limited, KEY) as root:
            root.completions.create(model=MODEL, prompt="hi", max_tokens=1)
        path = f"/admin/abort/{running}"
        refused = limited.http.post(path, headers=bearer(OTHER_KEY))
        assert refused.status_code == 403
        assert "needs the key of an admin" in refused.json()["error"]["message"]
        assert limited.http.post(path, headers=bearer(KEY)).json() == {"found": True}
        for _ in stream:
            pass
        wait_until(lambda: limited.http.post("/v1/completions", headers=bearer(OTHER_KEY), json={
            "model": MODEL, "prompt": "hi", "max_tokens": 1}).status_code == 200,
                   "the ended request is not counted any more")
    assert limited.metric("flotilla_router_rejected_total", reason="rate_limit") >= 2


def test_more_prompts_than_may_ever_run_at_once_are_not_told_to_try_again(limited):
    refused = limited.http.post("/v1/completions", headers=bearer(OTHER_KEY), json={
        "model": MODEL, "prompt": ["hi", "ho"], "max_tokens": 1})
    assert refused.status_code == 400 and "retry-after" not in refused.headers
    error = refused.json()["error"]
    assert error["param"] == "prompt" and "max-concurrent=1" in error["message"]


def test_tokens_of_a_minute_are_used_up(limited):
    ask = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True}
    first = limited.http.post("/v1/completions", headers=bearer(BOBS_KEY), json=ask)
    assert first.status_code == 200
    used = first.json()["usage"]["total_tokens"]
    second = limited.http.post("/v1/completions", headers=bearer(BOBS_KEY), json=ask)
    assert second.status_code == 429
    error = second.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert "tokens-per-minute=20" in error["message"] and "bob" in error["message"]
    seconds = (used - 20) * 60 / 20
    assert seconds - 20 < int(second.headers["retry-after"]) <= seconds + 1


def test_a_page_of_a_named_origin_may_read_answers(limited):
    page = {"origin": "https://chat.example"}
    asked = limited.http.options("/v1/chat/completions", headers={
        **page, "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type"})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://chat.example"
    answer = limited.http.get("/v1/models", headers={**page, **bearer(KEY)})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    refused = limited.http.get("/v1/models", headers=page)
    assert refused.status_code == 401 and "access-control-allow-origin" in refused.headers
    other = limited.http.get("/v1/models", headers={"origin": "https://evil.example", **bearer(KEY)})
    assert "access-control-allow-origin" not in other.headers
