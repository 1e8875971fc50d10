"""Every overlay renders, has the shape that it promises and keeps every invariant."""

import pytest

from invariants import INVARIANTS
from manifests import OVERLAYS, Fleet, render

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


@pytest.mark.parametrize("name", INVARIANTS)
def test_invariant(overlay, name):
    assert list(INVARIANTS[name](overlay[1])) == []
