"""scripts/fleet, and what Prometheus learns about a fleet.

A real Prometheus with the configuration of deploy/prometheus scrapes a fleet that serves
OpenAI's own client; then its counters must be the client's, and every expression of the
rules and dashboards must have an answer.
"""

import json
import math
import os
import re
import signal
import subprocess
import time
import types

import httpx
import openai
import pytest

from fleet_script import RunningFleet, run_fleet, up
from flotilla_server import MODEL, ROOT, wait_until

DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
PROMPT = "The lighthouse keeper climbed the stairs once more and looked out over the sea, where"


def openai_client(fleet, router):
    return openai.OpenAI(base_url=f"{fleet.url(router)}/v1", api_key="unused", max_retries=0)


class Prometheus:
    def __init__(self, port):
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30)

    def get(self, path, **parameters):
        answer = self.http.get(path, params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer}"
        return answer["data"]

    def query(self, expression):
        """Returns the values of all series."""
        return [float(one["value"][1]) for one in self.get("/query", query=expression)["result"]]

    def value(self, expression):
        values = self.query(expression)
        return values[0] if len(values) == 1 else None


def serve_clients(fleet):
    """Runs answers, streams, a stream that the client leaves, and refusals. Returns the client's
    own counts."""
    own = types.SimpleNamespace(started=0, finished=0, prompt=0, output=0, left_prompt=0)

    def count(usage):
        own.started += 1
        own.finished += 1
        own.prompt += usage.prompt_tokens
        own.output += usage.completion_tokens

    for i in range(6):
        with openai_client(fleet, i % 2) as client:
            count(client.completions.create(model=MODEL, prompt=f"{PROMPT} {i}",
                                            max_tokens=8 + i, temperature=0).usage)
            stream = client.chat.completions.create(
                model=MODEL, messages=[dict(role="user", content=f"Count to {i + 3}.")],
                max_tokens=16, seed=i, stream=True, stream_options={"include_usage": True})
            count([chunk.usage for chunk in stream if chunk.usage][-1])
    with openai_client(fleet, 0) as client:
        own.left_prompt = client.completions.create(model=MODEL, prompt=PROMPT,
                                                    max_tokens=1).usage.prompt_tokens
        own.started, own.finished = own.started + 1, own.finished + 1
        own.prompt, own.output = own.prompt + own.left_prompt, own.output + 1
        with client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2000, stream=True,
                                       extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        own.started += 1
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="another", prompt="x")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=MODEL, prompt="x", temperature=7)
        with pytest.raises(openai.BadRequestError, match="context"):
            client.completions.create(model=MODEL, prompt="x", max_tokens=1 << 20)
    return own


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with RunningFleet(tmp_path_factory.mktemp("fleet"), "--routers", "2") as one:
        yield one


@pytest.fixture(scope="module")
def prometheus(fleet):
    return Prometheus(fleet.of("prometheus")[0]["ports"]["http"])


@pytest.fixture(scope="module")
def served(fleet, prometheus):
    """The client's counts, after Prometheus has scraped the fleet before and after the load."""
    wait_until(lambda: prometheus.value("count(count_over_time(up[1m]) > 1 and up == 1)") == 4,
               "every process was scraped twice")
    own = serve_clients(fleet)
    # The scheduler is the last to learn that the client left its request.
    wait_until(lambda: prometheus.value(
        "sum(flotilla_scheduler_requests_finished_total)") == own.started, "all has ended")
    ended = time.time()
    wait_until(lambda: prometheus.value("min(timestamp(up))") > ended, "every process is scraped")
    return own


def test_counters_are_the_clients_own(served, prometheus):
    def total(series):
        return prometheus.value(f"sum({series})")

    assert total("flotilla_router_requests_total") == served.started
    assert total('flotilla_router_rejected_total{reason="too_long"}') == 1
    assert total('flotilla_router_rejected_total{reason="invalid"}') == 2
    assert total("flotilla_router_rejected_total") == 3
    assert total('flotilla_router_cancelled_total{by="client"}') == 1
    assert total("flotilla_router_requests_in_flight") == 0
    assert total("flotilla_router_time_to_first_token_seconds_count") == served.started
    assert total("flotilla_router_request_duration_seconds_count") == served.finished
    assert total("flotilla_router_prompt_tokens_sum") == served.prompt
    assert total("flotilla_router_output_tokens_sum") == served.output
    # The scheduler counts the request that was left, too.
    prompt = total('flotilla_scheduler_tokens_total{kind=~"prompt|prompt_cached"}')
    assert prompt == served.prompt + served.left_prompt
    assert total('flotilla_scheduler_tokens_total{kind="generated"}') > served.output
    assert total('flotilla_scheduler_requests_finished_total{reason="cancelled"}') == 1
    assert total("flotilla_worker_rows_total") == total("flotilla_scheduler_step_tokens_sum")


def names_in(expression):
    """The series that an expression names, also recorded ones."""
    bare = re.sub(r'\{[^}]*\}|\[[^]]*\]|(by|on|ignoring) \([^)]*\)', "", expression)
    return {name for name in re.findall(r"[a-z_:][a-z0-9_:]*", bare)
            if "flotilla_" in name or name.startswith("process_") or name == "up"}


def dashboard_expressions():
    """(dashboard/panel, expression) with every variable set to all."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = re.sub(r"\$(model|replica|instance)\b", ".*", target["expr"])
                yield (f"{path.stem}/{panel['title']}",
                       expression.replace("$__rate_interval", "1m"))


def test_every_metric_that_is_used_exists(served, prometheus):
    rules = [rule for group in prometheus.get("/rules")["groups"] for rule in group["rules"]]
    assert {rule["type"] for rule in rules} == {"recording", "alerting"}
    used = {name for rule in rules for name in names_in(rule["query"])}
    used |= {name for _, expression in dashboard_expressions() for name in names_in(expression)}
    assert len(used) > 50, used
    known = set(prometheus.get("/label/__name__/values"))
    assert used <= known, used - known
    wait_until(lambda: all(rule["health"] == "ok" for group in prometheus.get("/rules")["groups"]
                           for rule in group["rules"]), "every rule was evaluated")


def test_every_panel_has_data(served, prometheus):
    asked = list(dashboard_expressions())
    assert len(asked) > 80

    def empty():
        return {where: expression for where, expression in asked
                if not any(map(math.isfinite, prometheus.query(expression)))}

    deadline = time.monotonic() + 15  # rules are evaluated once a second
    while (missing := empty()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not missing


def test_top_shows_every_process(fleet):
    shown = run_fleet("top", fleet.directory, "--once")
    assert shown.returncode == 0, shown.stderr
    table = [line.split() for line in shown.stdout.splitlines() if line]
    assert [row[0] for row in table if row[0].isupper()] == ["ROUTER", "REPLICA", "WORKER"]
    for row in fleet.rows:
        if row["role"] not in ("prometheus", "rank"):
            port = row["ports"].get("metrics") or row["ports"]["http"]
            assert any(cells[0] == f"127.0.0.1:{port}" for cells in table), shown.stdout
    assert sum("ready" in row for row in table) == 3
    assert "MISSING" not in shown.stdout


def test_a_healthy_fleet_alarms_nobody(served, prometheus):
    alerts = prometheus.get("/alerts")["alerts"]
    assert not [one["labels"] for one in alerts if one["state"] == "firing"]


def test_names_and_help_follow_the_rules(fleet):
    for row in fleet.rows:
        if row["role"] in ("prometheus", "rank"):
            continue
        port = row["ports"].get("metrics") or row["ports"]["http"]
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        lint = subprocess.run(["promtool", "check", "metrics"], input=page, text=True,
                              capture_output=True, timeout=60)
        assert lint.returncode == 0 and not lint.stderr, lint
        # A router may serve several models, so its process has no label for a model.
        assert re.search(r"\nprocess_start_time_seconds[{ ]", page)
        assert "\nflotilla_build_info{" in page


def test_a_worker_that_dies_is_noticed(fleet, prometheus):
    # The last test that needs this fleet.
    os.kill(fleet.of("worker")[0]["pid"], signal.SIGKILL)
    expected = {("FlotillaTargetDown", "worker", "0"), ("FlotillaReplicaNotReady", "scheduler", "0"),
                ("FlotillaRouterNotReady", "router", None), ("FlotillaNothingServes", None, None)}

    def pending():  # alerts fire after a minute, which promtool's tests check
        labels = [one["labels"] for one in prometheus.get("/alerts")["alerts"]]
        return {(one["alertname"], one.get("role"), one.get("replica")) for one in labels}

    wait_until(lambda: expected <= pending(), f"{expected} are pending")


def test_up_says_where_everything_is(tmp_path):
    with RunningFleet(tmp_path, "--routers", "1", "--no-prometheus") as fleet:
        lines = fleet.started.stdout.splitlines()
        assert lines[0].split() == ["ROLE", "REPLICA", "RANK", "PID", "STATE", "PORTS", "URL"]
        assert [row["role"] for row in fleet.rows] == ["worker", "rank", "scheduler", "router"]
        for row, line in zip(fleet.rows, lines[1:]):
            assert row["state"] == "ready"
            assert line.split()[0] == row["role"] and str(row["pid"]) in line.split()
        curl = next(line for line in lines if line.strip().startswith("curl "))
        answer = subprocess.run(["bash", "-c", f"{curl} -sS"], capture_output=True, timeout=60)
        assert json.loads(answer.stdout)["choices"], answer

        refused = up(tmp_path)
        assert refused.returncode == 1 and "scripts/fleet down" in refused.stderr
        assert fleet.status() == fleet.rows

        # The states: dead, alive but unable to work, and stopped.
        worker = fleet.of("worker")[0]["pid"]
        os.kill(worker, signal.SIGSTOP)
        assert fleet.states()["worker"] == "stopped"
        os.kill(worker, signal.SIGCONT)
        assert fleet.states()["worker"] == "ready"
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: fleet.states() == {
            "worker": "dead", "scheduler": "not ready", "router": "not ready"}, "status tells")
        assert run_fleet("status", tmp_path).returncode == 1

        # It comes back where it was, and so do others. Those that run stay.
        refused = run_fleet("start", tmp_path, "worker-7")
        assert refused.returncode == 1 and "the fleet has worker-0, scheduler-0, router-0" in refused.stderr
        refused = run_fleet("start", tmp_path, "router-0")
        assert refused.returncode == 1 and "router-0 runs already" in refused.stderr
        os.kill(fleet.of("router")[0]["pid"], signal.SIGKILL)
        wait_until(lambda: fleet.states()["router"] == "dead", "the router is dead")
        assert [row["name"] for row in fleet.rows] == ["worker-0", None, "scheduler-0", "router-0"]
        again = run_fleet("start", tmp_path, "worker-0", "worker-0", "router-0")
        assert again.returncode == 0, again.stderr
        rows = {row["role"]: row for row in fleet.status()}
        for before in fleet.rows:
            now = rows[before["role"]]
            assert now["state"] == "ready" and now["ports"] == before["ports"], now
            assert (now["pid"] == before["pid"]) == (before["role"] == "scheduler")
        answer = subprocess.run(["bash", "-c", f"{curl} -sS"], capture_output=True, timeout=60)
        assert json.loads(answer.stdout)["choices"], answer
        fleet.rows = fleet.status()
    assert run_fleet("status", tmp_path).returncode == 1
    assert fleet.status() == []
    wait_until(lambda: not any(os.path.exists(f"/proc/{row['pid']}") for row in fleet.rows),
               "nothing is left")  # init may not have reaped them yet
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_down_waits_a_bounded_time(tmp_path):
    with RunningFleet(tmp_path, "--routers", "1", "--no-prometheus") as fleet, \
            openai_client(fleet, 0) as client:
        stream = iter(client.completions.create(model=MODEL, prompt="x", max_tokens=8000,
                                                stream=True, extra_body={"ignore_eos": True}))
        next(stream)
        ended = run_fleet("down", tmp_path, "--grace", "0.5")
        assert "killed: router-0" in ended.stdout
        with pytest.raises(Exception, match="closed|read|disconnect|Connection"):
            list(stream)
        assert fleet.status() == []


def test_a_fleet_that_cannot_start_leaves_nothing(tmp_path):
    failed = up(tmp_path, "--no-prometheus", "--scheduler-args=--no-such-flag")
    assert failed.returncode == 1
    assert "scheduler-0 has ended" in failed.stderr and "--no-such-flag" in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert run_fleet("status", tmp_path).returncode == 1
