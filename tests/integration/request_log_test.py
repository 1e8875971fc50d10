"""One request, followed through the logs of all roles."""

import re

import grpc
import pytest

from flotilla_server import MODEL, Fleet, wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
DEBUG = {role: ["--log-level", "debug"] for role in Fleet.ROLES}


def lines(program, event, **fields):
    """The fields of an event's log lines that have the given fields."""
    found = []
    for line in program.log_text().splitlines():
        if re.match(rf"\S+ \w+ {event} ", line):
            one = {key: plain or quoted for key, quoted, plain in
                   re.findall(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\S+))', line)}
            if all(one.get(key) == value for key, value in fields.items()):
                found.append(one)
    return found


def follow(fleet, **fields):
    """Returns the request's line from the router, from the scheduler, and from the worker."""
    wait_until(lambda: lines(fleet.router, "request ended", **fields), f"the router tells of {fields}")
    [over] = lines(fleet.router, "request ended", **fields)
    wait_until(lambda: lines(fleet.scheduler, "attempt ended", request=over["request"]),
               "the scheduler tells of it")
    [served] = lines(fleet.scheduler, "attempt ended", request=over["request"])

    def opened():
        return lines(fleet.worker, "sequence opened", request=over["request"])

    # The worker's line may come last. A request that its client left may never reach a worker.
    wait_until(lambda: opened() or over["outcome"] != "finished", "the worker tells of it")
    for key in ("trace_id", "span_id", "client_request_id", "prompt_tokens", "output_tokens"):
        assert served[key] == over[key], key
    return over, served, opened()


@pytest.fixture(scope="module", name="fleet")
def a_fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("fleet"), extra=DEBUG) as fleet:
        yield fleet


def test_a_request_is_found_by_its_id_and_trace_in_all_roles(fleet):
    answer = fleet.http.post("/v1/completions",
                             headers={"X-Request-Id": "mine-1", "traceparent": PARENT},
                             json=dict(model=MODEL, prompt="Once", max_tokens=5, n=2,
                                       ignore_eos=True))
    assert answer.status_code == 200, answer.text
    over, served, opened = follow(fleet, client_request_id="mine-1")
    assert (over["trace_id"], over["parent_span_id"]) == (TRACE, PARENT.split("-")[2])
    assert over["span_id"] != over["parent_span_id"]
    assert over["id"] in answer.json()["id"]
    assert (over["outcome"], over["attempts"], over["output_tokens"]) == ("finished", "1", "10")
    assert float(over["first_token_ms"]) <= float(over["ms"])
    assert served["attempt"] == "0" and served["status"] == "OK"
    assert opened[0]["sequence"] == "0"


def test_a_request_without_names_gets_them(fleet):
    answer = fleet.http.post("/v1/completions", headers={"traceparent": PARENT.upper()},
                             json=dict(model=MODEL, prompt="Twice", max_tokens=2))
    over, _, opened = follow(fleet, client_request_id=answer.headers["x-request-id"])
    assert over["trace_id"] not in (TRACE, "0" * 32), "an invalid traceparent begins a new trace"
    assert over["parent_span_id"] == "0" * 16
    assert len(opened) == 1


def test_grpc_carries_them_too(fleet, pb):
    with grpc.insecure_channel(f"127.0.0.1:{fleet.router.ports['grpc']}") as channel:
        stub = pb.services.InferenceStub(channel)
        request = pb.messages.GenerateRequest(model=MODEL, text="Thrice", max_tokens=2,
                                              request_id="mine-3")
        assert list(stub.Generate(request, metadata=[("traceparent", PARENT)]))
    over, _, _ = follow(fleet, client_request_id="mine-3")
    assert over["trace_id"] == TRACE


def test_refused_and_cancelled_requests_are_told_apart(fleet):
    fleet.http.post("/v1/completions", headers={"X-Request-Id": "too-long"},
                    json=dict(model=MODEL, prompt="x", max_tokens=8192))
    wait_until(lambda: lines(fleet.router, "request ended", client_request_id="too-long"), "told")
    [refused] = lines(fleet.router, "request ended", client_request_id="too-long")
    assert refused["outcome"] == "refused" and "context" in refused["error"]
    assert refused["attempts"] == "0" and refused["first_token_ms"] == "none"

    with fleet.http.stream("POST", "/v1/completions", headers={"X-Request-Id": "left"},
                           json=dict(model=MODEL, prompt="x", max_tokens=8000, stream=True,
                                     ignore_eos=True)) as stream:
        next(stream.iter_lines())
    over, served, _ = follow(fleet, client_request_id="left")
    assert over["outcome"] == "cancelled" and int(over["output_tokens"]) > 0
    assert int(served["output_tokens"]) >= int(over["output_tokens"])


def counted(fleet):
    """How many requests ended in this way, by the router's metrics."""
    return {"client": fleet.router.metric("flotilla_router_cancelled_total", by="client"),
            "deadline": fleet.router.metric("flotilla_router_cancelled_total", by="deadline"),
            "refused": fleet.router.metric("flotilla_router_rejected_total", reason="deadline")}


@pytest.mark.parametrize("way", ["timeout_ms", "timeout_ms, streamed", "of two choices",
                                 "of a gRPC call", "before it is admitted"])
def test_a_request_that_ends_by_its_deadline_says_so(fleet, pb, way):
    """The log has it, and the metrics have it once, wherever the request was and whichever role
    noticed first."""
    name = f"late: {way}".replace(" ", "-")
    before = counted(fleet)
    body = dict(model=MODEL, prompt="x", max_tokens=8000, ignore_eos=True, timeout_ms=400)
    if way == "of a gRPC call":
        with grpc.insecure_channel(f"127.0.0.1:{fleet.router.ports['grpc']}") as channel:
            request = pb.messages.GenerateRequest(model=MODEL, text="x", max_tokens=8000,
                                                  request_id=name)
            request.stop.ignore_eos = True
            with pytest.raises(grpc.RpcError) as error:
                # gRPC sends 1.49 s to the server, so the client gives up before the server.
                list(pb.services.InferenceStub(channel).Generate(request, timeout=1.481))
            assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        body |= {"of two choices": dict(n=2), "timeout_ms, streamed": dict(stream=True),
                 # The tokenizer alone takes longer than the deadline.
                 "before it is admitted": dict(timeout_ms=1, prompt="a b " * 2000,
                                               max_tokens=10)}.get(way, {})
        answer = fleet.http.post("/v1/completions", headers={"X-Request-Id": name}, json=body)
        # A stream that had begun has the error in its last event.
        assert answer.status_code == 504 or (body.get("stream") and '"code":"timeout"' in answer.text), answer.text
    wait_until(lambda: lines(fleet.router, "request ended", client_request_id=name), "it is told")
    [over] = lines(fleet.router, "request ended", client_request_id=name)
    assert over["outcome"] == "deadline", over
    rise = {key: value - before[key] for key, value in counted(fleet).items()}
    assert rise["client"] == 0 and rise["deadline"] + rise["refused"] == 1, rise
    # An admitted request is not refused; the tokenizer may have been quick.
    assert way == "before it is admitted" or rise["refused"] == 0
