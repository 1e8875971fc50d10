"""A fleet on a machine with other load. No process that only waits for a CPU is taken for dead
or stuck, and every answer equals the first one.

FLOTILLA_SOAK_SECONDS is the length of the test; without it the test is skipped. The long run
starts it beside the build and the tests with sanitizers, which load all CPUs.
"""

import concurrent.futures
import os
import time

import pytest

from fleet_test import Stream, requests
from flotilla_server import Fleet

SECONDS = float(os.environ.get("FLOTILLA_SOAK_SECONDS", 0))
CLIENTS = 4


@pytest.mark.skipif(not SECONDS, reason="only with FLOTILLA_SOAK_SECONDS")
def test_nobody_is_missed_who_is_only_slow(tmp_path, record_property):
    bodies = list(requests())
    with Fleet(tmp_path, extra={"worker": ["--tp", "2", "--threads", "1"]}) as fleet:
        expected = [Stream(fleet.url, body).run().answer() for body in bodies]
        ranks, mpirun = fleet.worker.members()
        until = time.monotonic() + SECONDS

        def client(number):
            served = 0
            while time.monotonic() < until:
                turn = (number + served) % len(bodies)
                assert Stream(fleet.url, bodies[turn]).run().answer() == expected[turn]
                served += 1
            return served

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            served = sum(pool.map(client, range(CLIENTS)))
        record_property("requests served, seconds, load of the machine",
                        f"{served}, {SECONDS:.0f}, {os.getloadavg()[2]:.1f}")
        assert served >= CLIENTS
        assert fleet.worker.members() == (ranks, mpirun)
        assert fleet.worker.metric("flotilla_worker_restarts_total") == 0
        assert fleet.worker.metric("flotilla_worker_epochs_lost_total") == 0
        assert fleet.scheduler.metric("flotilla_worker_groups_lost_total") == 0
        assert fleet.scheduler.metric("flotilla_scheduler_quarantined_requests_total") == 0
        assert fleet.router.metric("flotilla_router_retries_total") == 0
