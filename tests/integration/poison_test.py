"""A request whose computation really kills the worker fails, and no other request does."""

import concurrent.futures

import pytest

from flotilla_server import MODEL, SANITIZED, Fleet, Replicas, shared_library
from fleet_test import Stream, requests

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")

POISON = [31337] * 400  # so long that the worker dies before the step ends
# The poison kills after some processor time, so its chunks must not be cut short.
WHOLE_CHUNKS = {"scheduler": ["--itl-target-ms", "60000"]}


def test_a_request_that_kills_its_worker_is_failed_alone(tmp_path, monkeypatch):
    with Fleet(tmp_path) as fleet:
        expected = [Stream(fleet.url, body).run().answer() for body in requests()]

    monkeypatch.setenv("LD_PRELOAD", shared_library("poison", tmp_path))
    with Fleet(tmp_path, extra=WHOLE_CHUNKS) as fleet, concurrent.futures.ThreadPoolExecutor(8) as pool:
        monkeypatch.delenv("LD_PRELOAD")
        streams = [pool.submit(Stream(fleet.url, body).run) for body in requests()]
        answer = fleet.http.post("/v1/completions", json=dict(model=MODEL, prompt=POISON,
                                                              max_tokens=4))
        assert answer.status_code == 500, answer.text
        assert "the worker group died 2 times while it computed this request alone" in answer.text
        assert [stream.result().answer() for stream in streams] == expected
        # The group dies once with others or alone, then twice with the request alone in quarantine.
        assert fleet.worker.metric("flotilla_worker_restarts_total") == 3
        assert fleet.scheduler.metric("flotilla_scheduler_quarantined_requests_total", outcome="failed") == 1
        after = fleet.http.post("/v1/completions", json=dict(model=MODEL, prompt="x", max_tokens=3))
        assert after.status_code == 200, after.text


def test_where_there_is_another_replica_the_second_death_counts_there(tmp_path, monkeypatch):
    """The first replica dies when it starts the request, and once more when it computes it alone.
    Then the request moves, and another death alone fails it: both groups would have to be ill."""
    monkeypatch.setenv("LD_PRELOAD", shared_library("poison", tmp_path))
    with Replicas(tmp_path, routers=1) as fleet:
        monkeypatch.delenv("LD_PRELOAD")
        answer = fleet.routers[0].post("/v1/completions", json=dict(model=MODEL, prompt=POISON,
                                                                    max_tokens=4))
        assert answer.status_code == 500, answer.text
        assert "the worker group died 2 times while it computed this request alone" in answer.text
        restarts = [fleet.processes[f"worker{i}"].metric("flotilla_worker_restarts_total")
                    for i in range(2)]
        assert sorted(restarts) == [1, 2]
        failed = [fleet.processes[f"scheduler{i}"].metric(
            "flotilla_scheduler_quarantined_requests_total", outcome="failed") for i in range(2)]
        assert failed == [float(restart == 1) for restart in restarts]
        for prompt in range(4):  # both replicas serve others
            after = fleet.routers[0].post("/v1/completions", json=dict(
                model=MODEL, prompt=f"{prompt}", max_tokens=3))
            assert after.status_code == 200, after.text
