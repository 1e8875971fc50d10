"""Renders deploy/k8s and presents the objects as a fleet: pods, containers, settings."""

import copy
import dataclasses
import functools
import os
import pathlib
import re
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
# Kinds that kustomize and the core schemas do not know.
CUSTOM = {"LeaderWorkerSet", "InferencePool"}


def kubectl():
    path = os.environ.get("FLOTILLA_KUBECTL")
    assert path, "FLOTILLA_KUBECTL names no kubectl: run scripts/test"
    return path


@functools.cache
def _rendered(folder):
    result = subprocess.run([kubectl(), "kustomize", str(K8S / folder)], capture_output=True,
                            text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert not result.stderr, f"kubectl kustomize {folder} warns: {result.stderr}"
    return list(yaml.safe_load_all(result.stdout))


def render(folder):
    """The objects of a kustomization below deploy/k8s; the caller may change them."""
    return copy.deepcopy(_rendered(folder))


@dataclasses.dataclass
class Container:
    """A container that runs as long as its pod: an ordinary one or a sidecar."""

    pod: "Pod"
    raw: dict
    sidecar: bool

    @property
    def name(self):
        return self.raw["name"]

    @property
    def role(self):
        """The first argument: router, scheduler, worker or node."""
        return (self.raw.get("args") or [""])[0]

    def variables(self, fleet):
        """The values that $(NAME) may stand for; None if only the cluster knows the value."""
        values = {}
        for source in self.raw.get("envFrom", []):
            values |= fleet.get("ConfigMap", source["configMapRef"]["name"])["data"]
        for one in self.raw.get("env", []):
            values[one["name"]] = one.get("value")
        return values

    def flags(self, fleet):
        """{--flag: value} with variables replaced; {{NAME}} for variables of the cluster."""
        values = self.variables(fleet)

        def put(match):
            value = values.get(match[1])
            return f"{{{{{match[1]}}}}}" if value is None else value

        flags = {}
        for argument in self.raw.get("args", [])[1:]:
            name, _, value = argument.partition("=")
            flags[name] = re.sub(r"\$\(([A-Z_]+)\)", put, value)
        return flags

    def ports(self):
        return {port["name"]: port["containerPort"] for port in self.raw.get("ports", [])}

    def pre_stop_seconds(self):
        return self.raw.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)

    def __str__(self):
        return f"{self.pod}/{self.name}"


@dataclasses.dataclass
class Pod:
    """A pod, or the template from which a workload makes its pods."""

    owner: dict
    template: dict
    part: str  # of a LeaderWorkerSet: leader or worker

    @property
    def spec(self):
        return self.template["spec"]

    @property
    def labels(self):
        return self.template["metadata"].get("labels", {})

    @property
    def component(self):
        return self.labels.get("app.kubernetes.io/component")

    def containers(self):
        sidecars = [c for c in self.spec.get("initContainers", [])
                    if c.get("restartPolicy") == "Always"]
        return ([Container(self, c, True) for c in sidecars] +
                [Container(self, c, False) for c in self.spec["containers"]])

    def __str__(self):
        return f"{self.owner['kind']} {self.owner['metadata']['name']}{self.part}"


class Fleet:
    """The objects of one overlay."""

    def __init__(self, objects):
        self.objects = objects

    def of(self, *kinds):
        return [one for one in self.objects if one["kind"] in kinds]

    def get(self, kind, name):
        found = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} objects {kind} {name}"
        return found[0]

    def pods(self):
        pods = [Pod(one, one["spec"]["template"], "") for one in self.of("Deployment", "StatefulSet")]
        pods += [Pod(one, one, "") for one in self.of("Pod")]
        for one in self.of("LeaderWorkerSet"):
            templates = one["spec"]["leaderWorkerTemplate"]
            pods += [Pod(one, templates["leaderTemplate"], " leader"),
                     Pod(one, templates["workerTemplate"], " worker")]
        return pods

    def containers(self, role=None):
        return [c for pod in self.pods() for c in pod.containers() if role in (None, c.role)]

    def selected(self, labels):
        return [pod for pod in self.pods() if labels.items() <= pod.labels.items()]


def size(text):
    """The bytes or cores of a Kubernetes quantity."""
    match = re.fullmatch(r"([0-9.]+)(m|Ki|Mi|Gi|Ti)?", str(text))
    assert match, f"not a quantity: {text}"
    factor = {"m": 0.001, None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[match[2]]
    return float(match[1]) * factor
