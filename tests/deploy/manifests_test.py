"""Every overlay renders, has the shape that it promises and keeps every invariant."""

import os

import pytest
import yaml

from invariants import INVARIANTS
from manifests import K8S, OVERLAYS, Fleet, render

# {overlay: {pods: how many}}; None: the autoscaler decides.
SHAPES = {
    "cpu-small": {"router": 1, "replica": 1},
    "gpu": {"router": 1, "replica": 1},
    "multi-replica": {"router": 2, "replica": None},
    "multi-host": {"router": 2, "replica": 2, "replica-worker": 2},
    "multi-host-model": {"router": 2, "replica": 1, "replica-node": 1},
    "inference-gateway": {"replica": 2},
}


@pytest.fixture(scope="session", params=OVERLAYS)
def overlay(request):
    return request.param, Fleet(render(f"overlays/{request.param}"))


def test_overlays_have_their_shape(overlay):
    name, fleet = overlay
    assert {pod.component: pod.owner["spec"].get("replicas") for pod in fleet.pods()} == SHAPES[name]


def test_only_the_gpu_overlay_asks_for_gpus(overlay):
    name, fleet = overlay
    gpus = ["nvidia.com/gpu" in one.raw["resources"]["limits"] for one in fleet.containers("worker")]
    assert gpus == [name == "gpu"]


def test_a_model_may_be_sharded_over_gpus(tmp_path):
    """Every host of a replica then has a GPU. No overlay has both components."""
    folder = os.path.relpath(K8S, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({
        "resources": [f"{folder}/overlays/gpu"],
        "components": [f"{folder}/components/multi-host-model"]}))
    fleet = Fleet(render(tmp_path))
    assert [said for check in INVARIANTS.values() for said in check(fleet)] == []
    assert all(one.raw["resources"]["limits"]["nvidia.com/gpu"] == 1
               for one in fleet.containers("worker") + fleet.containers("node"))


@pytest.mark.parametrize("name", INVARIANTS)
def test_invariant(overlay, name):
    assert list(INVARIANTS[name](overlay[1])) == []
