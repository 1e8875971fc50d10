"""Several groups before several routers: who gets which request, and what clients see when
a group dies, drains or is gone.

Answers must be byte for byte those of an undisturbed run; each token comes once.
"""

import concurrent.futures
import signal

import grpc
import pytest

from flotilla_server import MODEL, Groups, wait_until
from fleet_test import serve_all


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    with Groups(tmp_path_factory.mktemp("groups"), drain_seconds=(30, 0)) as running:
        yield running


@pytest.fixture(autouse=True)
def all_there(groups):
    """Each test begins with all groups."""
    ended = [name for name, one in groups.processes.items() if one.process.poll() is not None]
    groups.start(*ended)
    wait_until(lambda: all(groups.up(g, r) for g in (0, 1) for r in (0, 1)), "all groups are up")


@pytest.fixture(scope="module")
def undisturbed(groups):
    return serve_all(groups.url())


def complete(http, prompt, **more):
    answer = http.post("/v1/completions", json=dict(model=MODEL, prompt=prompt, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_all_groups_get_work_from_every_router(groups):
    for router in (0, 1):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: complete(groups.routers[router], f"Number {i} is", max_tokens=8),
                          range(8)))
    assert groups.sent(0) > 0 and groups.sent(1) > 0
    for group in (0, 1):
        tokens = groups.processes[f"scheduler{group}"].metric("flotilla_scheduler_tokens_total",
                                                              kind="generated")
        assert tokens > 0, f"group {group}"


def test_equal_prefixes_go_to_one_group(groups):
    story = "Once upon a time there was a ship that sailed the seven seas. " * 20
    before = [groups.sent(0), groups.sent(1)]
    for i in range(6):
        complete(groups.routers[0], f"{story} Its name was {i}", max_tokens=2)
    sent = [groups.sent(g) - before[g] for g in (0, 1)]
    assert sorted(sent) == [0, 6]
    home = groups.processes[f"scheduler{sent.index(6)}"]
    assert home.metric("flotilla_kv_prefix_hit_tokens_total") >= 5 * 256


def test_the_same_request_id_gives_the_same_answer_through_another_router(groups):
    def ask(router, name):
        answer = groups.routers[router].post(
            "/v1/completions", headers={"X-Request-Id": name},
            json=dict(model=MODEL, prompt="My favourite colour is", max_tokens=24))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-request-id"] == name
        return answer.json()["choices"][0]["text"]

    assert ask(0, "retry-1") == ask(1, "retry-1")
    assert ask(0, "retry-1") != ask(1, "retry-2")


def test_the_same_request_id_over_grpc(groups, pb):
    def ask(router, name):
        port = groups.processes[f"router{router}"].ports["grpc"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            request = pb.messages.GenerateRequest(model=MODEL, text="My favourite colour is",
                                                  max_tokens=24, request_id=name)
            responses = list(pb.services.InferenceStub(channel).Generate(request))
        return "".join(delta.text for response in responses for delta in response.deltas)

    assert ask(0, "retry-1") == ask(1, "retry-1")
    assert ask(0, "retry-1") != ask(1, "retry-2")


def freeze(groups):
    groups.processes["scheduler0"].process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("end", [lambda groups: groups.kill("scheduler0", "worker0"),
                                 lambda groups: groups.kill("scheduler0"), freeze],
                         ids=["both die", "scheduler dies", "scheduler is frozen"])
def test_another_group_goes_on_when_one_dies(groups, undisturbed, end):
    before = groups.replays("sent"), groups.replays("resumed")
    assert serve_all(groups.url(), lambda: end(groups)) == undisturbed
    assert groups.replays("sent") > before[0], "the dead group had work"
    assert groups.replays("resumed") == before[1], "nobody waited"
    if groups.processes["scheduler0"].process.poll() is None:
        groups.processes["scheduler0"].process.send_signal(signal.SIGCONT)


def test_another_group_goes_on_when_a_worker_does_not_come_back(tmp_path, undisturbed):
    """Its scheduler lives, so the stream to the router does."""
    with Groups(tmp_path, routers=1, router=("--move-after-seconds", "1")) as groups:
        assert serve_all(groups.url(), lambda: groups.kill("worker0")) == undisturbed
        assert groups.replays("sent") > 0, "the group without a worker had work"
        assert groups.replays("resumed") == 0, "nobody was held"
        scheduler = groups.processes["scheduler0"]
        wait_until(lambda: scheduler.metric("flotilla_scheduler_requests_waiting") == 0,
                   "it has forgotten them")


def test_a_group_that_drains_loses_nothing(groups, undisturbed):
    draining = groups.processes["scheduler1"].process
    before = groups.replays("sent")

    def drain():
        sent = groups.sent(0)
        draining.send_signal(signal.SIGTERM)
        complete(groups.routers[0], "The sea", max_tokens=2)  # by the other
        assert groups.sent(0) > sent

    assert serve_all(groups.url(), drain) == undisturbed
    assert draining.wait(timeout=30) == 0
    # It had no time to finish what it had, which went on elsewhere.
    assert groups.replays("sent") > before


def test_without_groups_new_requests_are_refused(groups):
    groups.kill("scheduler0", "scheduler1")
    for http in groups.routers:
        wait_until(lambda: http.get("/ready").status_code == 503, "not ready")
        answer = http.post("/v1/completions", json=dict(model=MODEL, prompt="x"))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/health").status_code == 200


def test_a_router_serves_several_models(tmp_path):
    with Groups(tmp_path, models=("first", "second"), routers=1) as groups:
        http = groups.routers[0]
        wait_until(lambda: len(http.get("/v1/models").json()["data"]) == 2, "both models")
        assert sorted(m["id"] for m in http.get("/v1/models").json()["data"]) == ["first", "second"]
        for i, model in enumerate(("first", "second")):
            before = [groups.sent(0), groups.sent(1)]
            for _ in range(3):
                answer = http.post("/v1/completions", json=dict(model=model, prompt="x", logprobs=1,
                                                                max_tokens=2, temperature=0))
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == model
            sent = [groups.sent(g) - before[g] for g in (0, 1)]
            assert sent == [3 * (g == i) for g in (0, 1)]
            assert groups.processes["router0"].metric("flotilla_router_output_tokens_count",
                                                      model=model) == 3
        answer = http.post("/v1/completions", json=dict(model="third", prompt="x"))
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
