"""What clients of a fleet see when one of its processes dies, stops or restarts.

Answers must be byte for byte those of an undisturbed run; each token comes once.
"""

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket
import tempfile
import time

import httpx
import pytest

from flotilla_server import LONG, MODEL, Fleet, Program, model_path, wait_until

PROMPTS = ["Once upon a time", "The capital of France is", "In the beginning",
           "def fibonacci(n):", "My favourite colour is", "The sea was calm and"]
TOKENS = 120


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path) as one:
        yield one


def requests():
    """Greedy and sampled ones, with several choices and log-probabilities."""
    for i, prompt in enumerate(PROMPTS):
        yield dict(model=MODEL, prompt=prompt, max_tokens=TOKENS, ignore_eos=True,
                   temperature=0 if i % 2 == 0 else 0.8, seed=i, n=2 if i == 3 else 1,
                   logprobs=1 if i == 4 else None, return_token_ids=True)


class Stream:
    """One streamed completion, read by a thread."""

    def __init__(self, url, body):
        self.tokens, self.logprobs, self.text = {}, {}, {}
        self.finishes = {}
        self.body = {**{k: v for k, v in body.items() if v is not None}, "stream": True}
        self.url = url

    def run(self, timeout=120, headers=None):
        # Certificates are not used, and to load them takes longer than the shortest deadlines.
        with httpx.Client(base_url=self.url, timeout=timeout, headers=headers,
                          verify=False) as http, \
                http.stream("POST", "/v1/completions", json=self.body) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[len("data: "):])
                assert "error" not in event, event
                for choice in event["choices"]:
                    self.take(choice)
        return self

    def take(self, choice):
        i = choice["index"]
        self.tokens.setdefault(i, []).extend(choice.get("token_ids") or [])
        self.text[i] = self.text.get(i, "") + (choice.get("text") or "")
        if choice.get("logprobs"):
            self.logprobs.setdefault(i, []).extend(choice["logprobs"]["token_logprobs"])
        if choice.get("finish_reason"):
            assert i not in self.finishes
            self.finishes[i] = choice["finish_reason"]

    def answer(self):
        return self.tokens, self.text, self.logprobs, self.finishes

    def token_count(self):
        return sum(len(tokens) for tokens in list(self.tokens.values()))


def serve_all(url, disturb=None):
    """Returns all answers. It calls `disturb` when every stream has some tokens."""
    streams = [Stream(url, body) for body in requests()]
    with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
        running = [pool.submit(stream.run) for stream in streams]
        if disturb:
            wait_until(lambda: all(stream.token_count() > 5 for stream in streams)
                       or any(one.done() for one in running), "tokens on all streams")
            disturb()
        for one in running:
            one.result()
    return [stream.answer() for stream in streams]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("undisturbed")) as one:
        return serve_all(one.url)


def test_the_fleet_answers_as_one_process_does(server, undisturbed):
    assert serve_all(server.url) == undisturbed
    tokens, _, logprobs, finishes = undisturbed[3]
    assert [len(t) for t in tokens.values()] == [TOKENS] * 2
    assert finishes == {0: "length", 1: "length"}
    assert len(undisturbed[4][2][0]) == TOKENS


def notice(fleet, role):
    """Whether the process above this one considers it gone."""
    if role == "scheduler":
        return fleet.http.get("/ready").status_code == 503
    return fleet.scheduler.metric("flotilla_worker_groups_lost_total") > 0


@pytest.mark.parametrize("role", ["worker", "scheduler"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT,
                                    signal.SIGSTOP])
def test_a_process_that_goes_costs_a_pause(fleet, undisturbed, role, number):
    def go():
        one = getattr(fleet, role)
        if number == signal.SIGSTOP:
            one.process.send_signal(number)
            wait_until(lambda: notice(fleet, role), "it is missed")
            one.process.send_signal(signal.SIGCONT)
        else:
            one.kill(number)
            fleet.start(role)  # as its supervisor does, on the same port

    assert serve_all(fleet.url, go) == undisturbed
    if role == "scheduler" and number != signal.SIGTERM:  # SIGTERM lets requests finish
        assert fleet.router.metric("flotilla_router_retries_total") >= len(PROMPTS)


def test_a_worker_that_is_restarted_on_purpose_blames_nobody(fleet, undisturbed):
    """It says that it stops, so no request is quarantined."""
    def go():
        fleet.worker.kill(signal.SIGTERM)
        fleet.start("worker")

    assert serve_all(fleet.url, go) == undisturbed
    assert fleet.scheduler.metric("flotilla_worker_groups_lost_total") == 1
    assert fleet.scheduler.metric("flotilla_worker_groups_stopped_total") == 1
    assert quarantined(fleet.scheduler) == 0


def quarantined(scheduler):
    return scheduler.metric("flotilla_scheduler_quarantined_requests_total", outcome="quarantined")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT,
                                    signal.SIGSTOP])
def test_a_member_of_a_worker_group_that_goes_costs_a_pause(fleet, undisturbed, number):
    check_that_the_group_is_started_again(fleet, undisturbed, number)


def lose_group(worker, member, number, beside=None):
    """Sends a signal to a member of the group, and perhaps to another one, and waits until the next
    group is ready. Returns how many steps the worker had computed when the group was lost."""
    def restarts():
        return worker.metric("flotilla_worker_restarts_total")

    (rank,), mpirun = worker.members()
    before = restarts()
    start = time.monotonic()
    os.kill(member, number)
    if beside is not None:
        os.kill(beside, number)
    steps = worker.metric("flotilla_worker_steps_total")
    wait_until(lambda: restarts() == before + 1, "the loss is noticed", seconds=2)
    noticed = time.monotonic()
    wait_until(lambda: worker.members()[0] != [rank], "the group is ready again", seconds=5)
    print(f"{'rank' if member == rank else 'mpirun'}, {number.name}: "
          f"noticed after {noticed - start:.2f} s, ready {time.monotonic() - noticed:.2f} s later")
    for pid in (rank, mpirun):
        assert not os.path.exists(f"/proc/{pid}"), "a member was left behind"
    return steps


def check_that_the_group_is_started_again(fleet, undisturbed, number):
    """The test kills first the rank, then the mpirun of the next group; the agent starts both
    again."""
    worker = fleet.group

    def go():
        for member in ("rank", "mpirun"):
            (rank,), mpirun = worker.members()
            lose_group(worker, rank if member == "rank" else mpirun, number)

    assert serve_all(fleet.url, go) == undisturbed
    assert fleet.scheduler.metric("flotilla_worker_groups_lost_total") == 2
    assert worker.metric("flotilla_worker_restarts_total",
                         cause="stopped" if number == signal.SIGSTOP else "died") == 2
    if number != signal.SIGABRT:  # as a crash is, too
        assert quarantined(fleet.scheduler) == 0, "a request is blamed for a signal from outside"
    assert worker.metric("flotilla_worker_up", rank="0") == 1
    assert worker.metric("flotilla_worker_heartbeat_age_seconds", rank="0") < 1


def test_a_prompt_is_served_however_often_its_group_is_stopped(fleet):
    """mpirun is stopped three times, each time at about the same rows of the only request. A
    request that kills its worker looks like that, but here nobody is blamed. The prompt has 5
    steps, and 28 with FLOTILLA_LONG=1."""
    tokens, steps_before_stop = (7000, 20) if LONG else (1200, 2)
    body = dict(model=MODEL, prompt=random.Random(1).choices(range(1000, 40000), k=tokens),
                max_tokens=16, ignore_eos=True, temperature=0, return_token_ids=True)

    def steps():
        return fleet.worker.metric("flotilla_worker_steps_total")

    undisturbed = Stream(fleet.url, {**body, "cache_salt": "undisturbed"}).run(timeout=600).answer()
    assert len(undisturbed[0][0]) == 16
    stream = Stream(fleet.url, body)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        begin = steps()
        running = pool.submit(stream.run, timeout=600)
        for _ in range(3):
            wait_until(lambda: steps() >= begin + steps_before_stop, "its prompt is under way",
                       seconds=120)
            (rank,), mpirun = fleet.worker.members()
            # With the rank, which would compute on until the agent misses mpirun.
            begin = lose_group(fleet.worker, mpirun, signal.SIGSTOP, beside=rank)
            assert stream.token_count() == 0, "its prompt was over"
        running.result()
    assert stream.answer() == undisturbed
    assert fleet.worker.metric("flotilla_worker_restarts_total", cause="stopped") == 3
    for outcome in ("quarantined", "failed"):
        assert fleet.scheduler.metric("flotilla_scheduler_quarantined_requests_total",
                                      outcome=outcome) == 0


def test_a_scheduler_that_runs_its_group_starts_it_again(tmp_path, undisturbed):
    with Fleet(tmp_path, colocate=True) as fleet:
        check_that_the_group_is_started_again(fleet, undisturbed, signal.SIGKILL)


def test_a_scheduler_that_runs_its_group_takes_it_along(tmp_path, undisturbed):
    with Fleet(tmp_path, colocate=True) as fleet:
        (rank,), mpirun = fleet.scheduler.members()

        def go():
            fleet.scheduler.kill(signal.SIGKILL)
            for pid in (rank, mpirun):
                wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "it ends too", seconds=5)
            fleet.start("scheduler")

        assert serve_all(fleet.url, go) == undisturbed
        assert fleet.router.metric("flotilla_router_retries_total") >= len(PROMPTS)


def test_a_worker_leaves_no_process_and_no_file_behind(tmp_path, monkeypatch):
    # A socket's name has at most 107 bytes, so the folder is not in tmp_path.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        worker = Program(tmp_path, "worker", "--model", model_path())
        (rank,), mpirun = worker.members()
        assert len(os.listdir(temporary)) == 1
        worker.stop()
        assert not os.path.exists(f"/proc/{rank}") and not os.path.exists(f"/proc/{mpirun}")
        assert not os.listdir(temporary)


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_group_that_never_can_load_its_model_says_why(tmp_path, role):
    one = Program(tmp_path, role, "--model", model_path(), "--max-model-len", "9999999",
                  wait=False)
    assert one.process.wait(timeout=30) == 1
    assert "--max-model-len 9999999: the model was trained for" in one.log_text()


def test_a_scheduler_wants_to_know_its_group(tmp_path):
    one = Program(tmp_path, "scheduler", wait=False)
    assert one.process.wait(timeout=30) == 1
    assert "--worker HOST:PORT" in one.log_text() and "--model PATH" in one.log_text()


def test_a_router_that_goes_leaves_nothing_behind(fleet):
    with httpx.stream("POST", f"{fleet.url}/v1/completions",
                      json=dict(model=MODEL, prompt="x", max_tokens=2000, ignore_eos=True,
                                stream=True), timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        assert fleet.scheduler.metric("flotilla_kv_blocks", state="used") > 0
        fleet.router.kill(signal.SIGKILL)
        wait_until(lambda: fleet.scheduler.metric("flotilla_kv_blocks", state="used") == 0,
                   "its blocks are free")


def test_new_requests_are_refused_while_there_is_no_scheduler(fleet):
    fleet.scheduler.kill(signal.SIGKILL)
    wait_until(lambda: fleet.http.get("/ready").status_code == 503, "not ready")
    answer = fleet.http.post("/v1/completions", json=dict(model=MODEL, prompt="x"))
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    fleet.start("scheduler")
    wait_until(lambda: fleet.http.get("/ready").status_code == 200, "ready again")
    answer = fleet.http.post("/v1/completions", json=dict(model=MODEL, prompt="x", max_tokens=3))
    assert answer.status_code == 200, answer.text


def test_roles_start_in_any_order(tmp_path):
    with Fleet(tmp_path, order=("router", "scheduler", "worker")) as fleet:
        answer = fleet.http.post("/v1/completions",
                                 json=dict(model=MODEL, prompt="x", max_tokens=3))
        assert answer.status_code == 200, answer.text


def test_a_router_needs_no_model_file(fleet):
    command = fleet.router.process.args
    assert "--model" not in command and not any(str(word).endswith(".gguf") for word in command)
    answer = fleet.http.post("/v1/chat/completions",
                             json=dict(model=MODEL, max_tokens=3,
                                       messages=[dict(role="user", content="Hello")]))
    assert answer.status_code == 200, answer.text


def test_every_role_has_metrics(fleet):
    fleet.http.post("/v1/completions", json=dict(model=MODEL, prompt="x", max_tokens=3))
    assert fleet.worker.metric("flotilla_worker_steps_total") >= 3
    assert fleet.scheduler.metric("flotilla_scheduler_tokens_total", kind="generated") == 3
    assert fleet.router.metric("flotilla_router_output_tokens_count") == 1
    for one in (fleet.worker, fleet.scheduler, fleet.router):
        assert one.metric("flotilla_build_info", model=MODEL) == 1


def test_what_else_is_asked_of_a_metrics_port_harms_nobody(fleet):
    for one in (fleet.worker, fleet.scheduler):
        url = f"http://127.0.0.1:{one.ports['metrics']}"
        assert httpx.get(f"{url}/nope").status_code == 404
        assert httpx.post(f"{url}/metrics", content=b"x" * 100_000).status_code in (400, 405)
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{url}/metrics", headers={"x": "x" * 100_000})
        with socket.create_connection(("127.0.0.1", one.ports["metrics"])) as raw:
            raw.sendall(b"\0" * 10_000)
        assert one.metric("flotilla_build_info", model=MODEL) == 1
        assert one.process.poll() is None
