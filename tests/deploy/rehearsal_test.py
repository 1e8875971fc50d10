"""Rendered pods, run on this machine: they start, serve, drain and end as promised."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from manifests import ROOT, Fleet, render, size
from rehearsal import WORDS

# One of each shape: gpu and multi-replica have the same pods as cpu-small.
SHAPES = ("cpu-small", "multi-host", "multi-host-model", "inference-gateway")


def program():
    return os.environ.get("FLOTILLA_BIN", str(ROOT / "build/release/bin/flotilla"))


@functools.cache
def may_unshare():
    """Whether this machine allows the test to have namespaces of its own, with other users."""
    return os.geteuid() == 0 and subprocess.run(
        ["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=SHAPES)
def rehearsed(request):
    if not may_unshare():
        pytest.skip("needs root, and network and mount namespaces")
    model = os.environ.get("FLOTILLA_MODEL", "")
    assert os.path.exists(model), "FLOTILLA_MODEL names no model: run scripts/test"
    result = subprocess.run(
        [sys.executable, pathlib.Path(__file__).with_name("rehearsal.py"), request.param, program(),
         model], capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_every_role_runs_without_rights(rehearsed):
    hosts = {"node"} if rehearsed["overlay"] == "multi-host-model" else set()
    assert set(rehearsed["roles"]) == {"router", "scheduler", "worker"} | hosts
    for role, seen in rehearsed["roles"].items():
        assert seen == {"uid": 65532, "capabilities": "0" * 16}, role


def test_ranks_run_on_every_host_of_a_replica(rehearsed):
    assert rehearsed["lent"] == (rehearsed["overlay"] == "multi-host-model")


def test_a_replica_that_is_taken_away_finishes_its_answer(rehearsed):
    assert len(rehearsed["undisturbed"]) == WORDS
    assert rehearsed["drained"] == rehearsed["undisturbed"]


def pool_bytes(blocks):
    """The bytes of a bf16 KV pool, by the formula of docs/kubernetes.md."""
    text = subprocess.run([program(), "inspect", os.environ["FLOTILLA_MODEL"]], capture_output=True,
                          text=True, check=True).stdout
    of = {key: int(value) for key, value in re.findall(r"llama\.(\S+) +u32 +(\d+)", text)}
    head = of["embedding_length"] // of["attention.head_count"]
    return blocks * 16 * 4 * of["block_count"] * of["attention.head_count_kv"] * head


def test_a_full_pool_fits_into_the_memory_limit(rehearsed):
    fleet = Fleet(render(f"overlays/{rehearsed['overlay']}"))
    worker = fleet.containers("worker")[0]
    wanted = rehearsed["worker_bytes"] + pool_bytes(int(worker.flags(fleet)["--kv-blocks"]))
    shm = next(v["emptyDir"]["sizeLimit"] for v in worker.pod.spec["volumes"] if v["name"] == "shm")
    limit = size(worker.raw["resources"]["limits"]["memory"])
    assert 1.25 * wanted + size(shm) < limit
