"""Objects are valid for Kubernetes, by its own schemas and by linters."""

import copy
import os
import pathlib
import subprocess
import sys

import jsonschema
import kubernetes_validate
import pytest
import yaml

from manifests import CUSTOM, OVERLAYS, ROOT, Fleet, kubectl, render

FOLDERS = [*(f"overlays/{name}" for name in OVERLAYS), "model-loader"]
# The oldest release that has what the manifests use (preStop.sleep), and the newest known.
RELEASES = ("1.30", "1.37")
SCHEMAS = pathlib.Path(__file__).with_name("schemas")
# Registry and digest are left to those who deploy. Tags are never pushed twice, so pulling
# them every time gains nothing.
CHECKOV_SKIPS = "CKV_K8S_43,CKV_K8S_15"


def tool(name):
    """A program that the requirements install."""
    return str(pathlib.Path(sys.executable).with_name(name))


def validate(one, release):
    """Raises if an object does not match the schema of its kind."""
    if one["kind"] not in CUSTOM:
        kubernetes_validate.validate(one, release, strict=True)
        return
    schema = yaml.safe_load((SCHEMAS / f"{one['kind'].lower()}.yaml").read_text())
    jsonschema.validate(one, schema)
    for pod in Fleet([one]).pods():
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"},
             "template": pod.template}, release, strict=True)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_objects_are_valid(folder, release):
    for one in render(folder):
        validate(one, release)


def _change(path, key, value):
    def change(one):
        for step in path:
            one = one[step]
        one[key] = value
    return change


@pytest.mark.parametrize("overlay,kind,change", [
    ("cpu-small", "Deployment", _change(("spec", "template", "spec"), "gracePeriod", 1)),
    ("cpu-small", "NetworkPolicy", _change(("spec",), "policyTypes", "Ingress")),
    ("multi-host", "LeaderWorkerSet", _change(("spec",), "size", 2)),
    ("multi-host", "LeaderWorkerSet", _change(
        ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "containers", 0), "arguments", [])),
    ("inference-gateway", "InferencePool", _change(("spec",), "targetPortNumber", 8080)),
])
def test_a_wrong_object_is_seen(overlay, kind, change):
    one = copy.deepcopy(Fleet(render(f"overlays/{overlay}")).of(kind)[0])
    validate(one, RELEASES[0])
    change(one)
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        validate(one, RELEASES[0])


def test_kubectl_renders_alike_twice():
    """Only a change of a setting changes names, and so restarts pods."""
    command = [kubectl(), "kustomize", str(ROOT / "deploy/k8s/overlays/cpu-small")]
    first, second = (subprocess.run(command, capture_output=True, check=True).stdout for _ in "12")
    assert first == second


def test_yaml_is_tidy():
    subprocess.run([tool("yamllint"), "--strict", "-c", "tests/deploy/yamllint.yaml", "deploy",
                    "tests/deploy"], cwd=ROOT, check=True)


def test_the_dockerfile_is_tidy():
    subprocess.run([tool("hadolint"), "deploy/docker/Dockerfile"], cwd=ROOT, check=True)


def run_checkov(folder):
    checkov = os.environ.get("FLOTILLA_CHECKOV")
    assert checkov, "FLOTILLA_CHECKOV names no checkov: run scripts/test"
    return subprocess.run(
        [checkov, "--framework", "kubernetes", "--directory", str(folder), "--skip-check",
         CHECKOV_SKIPS, "--skip-download", "--compact", "--quiet"],
        capture_output=True, text=True, timeout=120, check=False)


def test_policies_of_checkov_hold(tmp_path):
    for folder in FOLDERS:
        (tmp_path / f"{folder.replace('/', '-')}.yaml").write_text(yaml.dump_all(render(folder)))
    result = run_checkov(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    # The tool must have found the objects, and must be able to object.
    (tmp_path / "bad.yaml").write_text(yaml.dump(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"},
         "spec": {"hostPID": True, "containers": [{"name": "x", "image": "x"}]}}))
    for path in tmp_path.glob("[!b]*.yaml"):
        path.unlink()
    assert "CKV_K8S_17" in run_checkov(tmp_path).stdout
