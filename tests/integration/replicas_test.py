"""Several replicas behind several routers: which replica gets a request, and what clients see
when a replica dies, drains or is gone.

Answers must be byte for byte those of an undisturbed run; each token comes once.
"""

import concurrent.futures
import signal

import grpc
import pytest

from flotilla_server import MODEL, Replicas, wait_until
from fleet_test import serve_all


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    with Replicas(tmp_path_factory.mktemp("replicas"), drain_seconds=(30, 0)) as running:
        yield running


@pytest.fixture(autouse=True)
def all_there(replicas):
    """Waits until all replicas are up, so that each test begins with all of them."""
    ended = [name for name, one in replicas.processes.items() if one.process.poll() is not None]
    replicas.start(*ended)
    replicas.wait_up()


@pytest.fixture(scope="module")
def undisturbed(replicas):
    return serve_all(replicas.url())


def complete(http, prompt, **more):
    answer = http.post("/v1/completions", json=dict(model=MODEL, prompt=prompt, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_all_replicas_get_work_from_every_router(replicas):
    for router in (0, 1):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: complete(replicas.routers[router], f"Number {i} is", max_tokens=8),
                          range(8)))
    assert replicas.sent(0) > 0 and replicas.sent(1) > 0
    for replica in (0, 1):
        tokens = replicas.processes[f"scheduler{replica}"].metric("flotilla_scheduler_tokens_total",
                                                              kind="generated")
        assert tokens > 0, f"replica {replica}"


def test_equal_prefixes_go_to_one_replica(replicas):
    story = "Once upon a time there was a ship that sailed the seven seas. " * 20
    before = [replicas.sent(0), replicas.sent(1)]
    for i in range(6):
        complete(replicas.routers[0], f"{story} Its name was {i}", max_tokens=2)
    sent = [replicas.sent(g) - before[g] for g in (0, 1)]
    assert sorted(sent) == [0, 6]
    home = replicas.processes[f"scheduler{sent.index(6)}"]
    assert home.metric("flotilla_kv_prefix_hit_tokens_total") >= 5 * 256


def test_the_same_request_id_gives_the_same_answer_through_another_router(replicas):
    def ask(router, name):
        answer = replicas.routers[router].post(
            "/v1/completions", headers={"X-Request-Id": name},
            json=dict(model=MODEL, prompt="My favourite colour is", max_tokens=24))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-request-id"] == name
        return answer.json()["choices"][0]["text"]

    assert ask(0, "retry-1") == ask(1, "retry-1")
    assert ask(0, "retry-1") != ask(1, "retry-2")


def test_the_same_request_id_over_grpc(replicas, pb):
    def ask(router, name):
        port = replicas.processes[f"router{router}"].ports["grpc"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            request = pb.messages.GenerateRequest(model=MODEL, text="My favourite colour is",
                                                  max_tokens=24, request_id=name)
            responses = list(pb.services.InferenceStub(channel).Generate(request))
        return "".join(delta.text for response in responses for delta in response.deltas)

    assert ask(0, "retry-1") == ask(1, "retry-1")
    assert ask(0, "retry-1") != ask(1, "retry-2")


def freeze(replicas):
    replicas.processes["scheduler0"].process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("end", [lambda replicas: replicas.kill("scheduler0", "worker0"),
                                 lambda replicas: replicas.kill("scheduler0"), freeze],
                         ids=["both die", "scheduler dies", "scheduler is frozen"])
def test_another_replica_goes_on_when_one_dies(replicas, undisturbed, end):
    before = replicas.replays("sent"), replicas.replays("resumed")
    assert serve_all(replicas.url(), lambda: end(replicas)) == undisturbed
    assert replicas.replays("sent") > before[0], "the dead replica had work"
    assert replicas.replays("resumed") == before[1], "nobody waited"
    if replicas.processes["scheduler0"].process.poll() is None:
        replicas.processes["scheduler0"].process.send_signal(signal.SIGCONT)


def test_another_replica_goes_on_when_a_worker_does_not_come_back(tmp_path, undisturbed):
    """The worker's scheduler lives, so the stream to the router lives too."""
    with Replicas(tmp_path, routers=1, router=("--move-after-seconds", "1")) as replicas:
        assert serve_all(replicas.url(), lambda: replicas.kill("worker0")) == undisturbed
        assert replicas.replays("sent") > 0, "the replica without a worker had work"
        assert replicas.replays("resumed") == 0, "nobody was held"
        scheduler = replicas.processes["scheduler0"]
        wait_until(lambda: scheduler.metric("flotilla_scheduler_requests_waiting") == 0,
                   "it has forgotten them")


def test_a_replica_on_another_kind_of_cpu_goes_on(tmp_path, undisturbed):
    """All instruction paths give equal bits, so the numerics ids are equal, too."""
    with Replicas(tmp_path, routers=1, isas=("auto", "avx2")) as replicas:
        assert serve_all(replicas.url(), lambda: replicas.kill("scheduler0", "worker0")) == undisturbed
        assert replicas.replays("sent") > 0, "the dead replica had work"
        assert replicas.replays("resumed") == 0, "nobody was held"


def test_a_replica_that_drains_loses_nothing(replicas, undisturbed):
    draining = replicas.processes["scheduler1"].process
    before = replicas.replays("sent")

    def drain():
        sent = replicas.sent(0)
        draining.send_signal(signal.SIGTERM)
        complete(replicas.routers[0], "The sea", max_tokens=2)  # served by the other replica
        assert replicas.sent(0) > sent

    assert serve_all(replicas.url(), drain) == undisturbed
    assert draining.wait(timeout=30) == 0
    # It had no time to finish its requests, which continued elsewhere.
    assert replicas.replays("sent") > before


def test_without_replicas_new_requests_are_refused(replicas):
    replicas.kill("scheduler0", "scheduler1")
    for http in replicas.routers:
        wait_until(lambda: http.get("/ready").status_code == 503, "not ready")
        answer = http.post("/v1/completions", json=dict(model=MODEL, prompt="x"))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/health").status_code == 200


def test_a_router_serves_several_models(tmp_path):
    with Replicas(tmp_path, models=("first", "second"), routers=1) as replicas:
        http = replicas.routers[0]
        wait_until(lambda: len(http.get("/v1/models").json()["data"]) == 2, "both models")
        assert sorted(m["id"] for m in http.get("/v1/models").json()["data"]) == ["first", "second"]
        for i, model in enumerate(("first", "second")):
            before = [replicas.sent(0), replicas.sent(1)]
            for _ in range(3):
                answer = http.post("/v1/completions", json=dict(model=model, prompt="x", logprobs=1,
                                                                max_tokens=2, temperature=0))
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == model
            sent = [replicas.sent(g) - before[g] for g in (0, 1)]
            assert sent == [3 * (g == i) for g in (0, 1)]
            assert replicas.processes["router0"].metric("flotilla_router_output_tokens_count",
                                                      model=model) == 3
        answer = http.post("/v1/completions", json=dict(model="third", prompt="x"))
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
