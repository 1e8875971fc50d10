"""Checks what docs/kubernetes.md says."""

import os
import re
import subprocess

import yaml

from fleet_invariants import unknown_metrics
from manifests import K8S, OVERLAYS, ROOT, Fleet, kubectl, render

PAGE = (ROOT / "docs/kubernetes.md").read_text()
BUILD_ARGUMENTS = set(re.findall(r"^ARG (\w+)", (ROOT / "deploy/docker/Dockerfile").read_text(),
                                 re.MULTILINE))


def test_the_example_overlay_renders(tmp_path):
    example = re.search(r"```yaml\n(# my-fleet.*?)```", PAGE, re.DOTALL)[1]
    assert "../flotilla/" in example
    (tmp_path / "kustomization.yaml").write_text(
        example.replace("../flotilla/", os.path.relpath(ROOT, tmp_path) + "/"))
    text = subprocess.run([kubectl(), "kustomize", tmp_path], capture_output=True, text=True,
                          check=True).stdout
    fleet = Fleet(list(yaml.safe_load_all(text)))
    assert {one.raw["image"] for one in fleet.containers()} == {"REGISTRY/flotilla:0.1.0"}
    flags = fleet.containers("worker")[0].flags(fleet)
    assert flags["--model"] == "/models/m.gguf" and flags["--served-model-name"] == "m"


def test_shapes_and_components_are_those_that_exist():
    for heading, folder in (("overlay", "overlays"), ("component", "components")):
        table = re.search(rf"\| {heading} \|.*?\n\n", PAGE, re.DOTALL)[0]
        named = set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE))
        assert named == {path.name for path in (K8S / folder).iterdir()}


def test_the_arguments_of_the_build_are_explained():
    assert set(re.findall(r"--build-arg (\w+)=", PAGE)) == BUILD_ARGUMENTS


def test_names_are_real():
    fleets = [Fleet(render(f"overlays/{name}")) for name in OVERLAYS]
    settings = {name for fleet in fleets for one in fleet.of("ConfigMap") for name in one["data"]}
    assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)[`=]", PAGE)) <= settings | BUILD_ARGUMENTS
    assert not unknown_metrics(PAGE)
    objects = {f"{one['kind']} `{one['metadata']['name']}`" for fleet in fleets
               for one in fleet.objects}
    for named in re.findall(r"^\| ((?:Deployment|StatefulSet|Service) `[a-z-]+`)", PAGE, re.MULTILINE):
        assert named in objects
