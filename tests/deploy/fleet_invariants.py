"""Invariants of the fleet: which process finds which, what settings say, how the fleet is rolled
and scaled."""

import functools
import os
import re
import subprocess

import yaml

from invariants import invariant
from manifests import CUSTOM, K8S, ROOT

LABELS = {"app.kubernetes.io/name": "flotilla", "app.kubernetes.io/instance": "flotilla",
          "app.kubernetes.io/part-of": "flotilla"}
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
# Which flag opens which named port.
PORT_FLAGS = {("router", "http"): "--http-port", ("router", "grpc"): "--grpc-port",
              ("scheduler", "scheduler"): "--listen-port",
              ("scheduler", "sched-metrics"): "--metrics-port",
              ("worker", "worker"): "--listen-port", ("worker", "worker-metrics"): "--metrics-port",
              ("node", "node"): "--listen-port", ("node", "node-metrics"): "--metrics-port"}


@functools.cache
def known_flags(role):
    """The flags that the built program has for a role."""
    binary = os.environ.get("FLOTILLA_BIN", str(ROOT / "build/release/bin/flotilla"))
    text = subprocess.run([binary, role, "--help"], capture_output=True, text=True, timeout=30,
                          check=True).stdout
    return frozenset(re.findall(r"--[a-z][a-z-]+", text))


@functools.cache
def metric_names():
    """The names of metrics in the program's sources. Each component has its own beside it."""
    sources = [source for folder in ("common", "router", "rpc", "scheduler", "worker")
               for source in (ROOT / folder).rglob("*metrics.cc")]
    return frozenset(re.findall(r'"(flotilla_[a-z_]+)"', "".join(s.read_text() for s in sources)))


def unknown_metrics(text):
    return set(re.findall(r"\bflotilla_[a-z_]+\b", text)) - metric_names()


@invariant
def objects_are_labelled_and_in_one_namespace(fleet):
    for one in fleet.objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        if not LABELS.items() <= one["metadata"].get("labels", {}).items():
            yield f"{name} lacks the common labels"
        if one["kind"] != "Namespace" and one["metadata"].get("namespace") != "flotilla":
            yield f"{name} is not in the fleet's namespace"
    for pod in fleet.pods():
        if not LABELS.items() <= pod.labels.items() or not pod.component:
            yield f"{pod} lacks the common labels"


@invariant
def the_namespace_refuses_privileges(fleet):
    for one in fleet.of("Namespace"):
        if one["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
            yield "the namespace admits more than restricted pods"


@invariant
def objects_are_few_of_a_kind_and_name(fleet):
    seen = set()
    for one in fleet.objects:
        key = (one["kind"], one["metadata"]["name"])
        if key in seen:
            yield f"{key} is there twice"
        seen.add(key)


@invariant
def the_program_knows_its_flags(fleet):
    for one in fleet.containers():
        for flag in one.flags(fleet).keys() - known_flags(one.role):
            yield f"{one}: flotilla {one.role} has no {flag}"


@invariant
def variables_are_defined(fleet):
    for one in fleet.containers():
        for name in re.findall(r"\$\(([A-Z_]+)\)", " ".join(one.raw.get("args", []))):
            if name not in one.variables(fleet):
                yield f"{one} uses $({name}), which nothing defines"


@invariant
def settings_are_used(fleet):
    arguments = " ".join(a for one in fleet.containers() for a in one.raw.get("args", []))
    for settings in fleet.of("ConfigMap"):
        for name in settings["data"]:
            if name.isupper() and f"$({name})" not in arguments:
                yield f"nothing uses the setting {name}"


@invariant
def changed_settings_roll_the_pods(fleet):
    for one in fleet.containers():
        for source in one.raw.get("envFrom", []):
            name = source["configMapRef"]["name"]
            if not re.fullmatch(r"flotilla-settings-[a-z0-9]{10}", name):
                yield f"{one} does not notice when {name} changes"


@invariant
def scheduler_and_worker_agree(fleet):
    schedulers = [one.flags(fleet) for one in fleet.containers("scheduler")]
    for one in fleet.containers("worker"):
        for name in ("--max-batch-tokens", "--max-seqs"):
            if any(flags.get(name) != one.flags(fleet).get(name) for flags in schedulers):
                yield f"{one} and its scheduler differ in {name}"


@invariant
def ports_are_those_that_flags_open(fleet):
    for one in fleet.containers():
        wanted = {name: flag for (role, name), flag in PORT_FLAGS.items() if role == one.role}
        if set(one.ports()) != set(wanted):
            yield f"{one} has ports {sorted(one.ports())}, not {sorted(wanted)}"
        for name, flag in wanted.items():
            if str(one.ports().get(name)) != one.flags(fleet).get(flag):
                yield f"port {name} of {one} is not {flag}"
        if one.flags(fleet).get("--host") != "0.0.0.0":
            yield f"{one} does not listen on the pod's address"
    for pod in fleet.pods():
        ports = [port for one in pod.containers() for port in one.ports().values()]
        if len(ports) != len(set(ports)):
            yield f"two containers of {pod} want one port"


@invariant
def routers_find_schedulers(fleet):
    for one in fleet.containers("router"):
        address = one.flags(fleet).get("--scheduler", "")
        if match := re.fullmatch(r"dns:///([a-z-]+):(\d+)", address):
            services = [s for s in fleet.of("Service") if s["metadata"]["name"] == match[1]]
            found = services and services[0]["spec"].get("clusterIP") == "None" and [
                pod for pod in fleet.selected(services[0]["spec"]["selector"])
                if any(c.role == "scheduler" and c.ports()["scheduler"] == int(match[2])
                       for c in pod.containers())]
        else:
            found = [c for c in one.pod.containers() if c.role == "scheduler" and
                     address == f"127.0.0.1:{c.ports()['scheduler']}"]
        if not found:
            yield f"{one} finds no scheduler at {address}"


@invariant
def schedulers_find_workers(fleet):
    for one in fleet.containers("scheduler"):
        address = one.flags(fleet).get("--worker", "")
        found = [c for c in one.pod.containers() if c.role == "worker" and
                 address == f"127.0.0.1:{c.ports()['worker']}"]
        for lws in fleet.of("LeaderWorkerSet"):
            found += [c for c in fleet.containers("worker") if c.pod.owner is lws and
                      lws["spec"]["networkConfig"]["subdomainPolicy"] == "Shared" and
                      lws["spec"]["leaderWorkerTemplate"]["size"] == 2 and address ==
                      f"{{{{POD_NAME}}}}-1.{lws['metadata']['name']}:{c.ports()['worker']}"]
        if not found:
            yield f"{one} finds no worker at {address}"


@invariant
def workers_find_their_hosts(fleet):
    """There are as many hosts as ranks: the leader's own pod, then the others of its replica."""
    for one in fleet.containers("worker"):
        flags, owner = one.flags(fleet), one.pod.owner
        hosts = [c for c in fleet.containers("node") if c.pod.owner is owner]
        if "--hosts" not in flags:
            if hosts:
                yield f"{one} does not use {hosts[0]}"
            continue
        count = owner["spec"]["leaderWorkerTemplate"]["size"]
        name = owner["metadata"]["name"]
        others = [f"{{{{POD_NAME}}}}-{i}.{name}" for i in range(1, count)]
        if flags["--hosts"].split(",") != ["{{POD_NAME}}", *others]:
            yield f"{one} looks for hosts {flags['--hosts']}"
        if int(flags.get("--tp", 1)) * int(flags.get("--pp", 1)) != count:
            yield f"{one} has another number of ranks than of hosts"
        if [c.flags(fleet).get("--listen-port") for c in hosts] != [flags.get("--hosts-port")]:
            yield f"{one} finds no host at port {flags.get('--hosts-port')}"
        for c in hosts:
            if c.raw["resources"] != one.raw["resources"]:
                yield f"ranks on {c} have other resources than those on {one}"


@invariant
def services_lead_somewhere(fleet):
    for service in fleet.of("Service"):
        name, pods = service["metadata"]["name"], fleet.selected(service["spec"]["selector"])
        if not pods:
            yield f"Service {name} selects no pods"
        for port in service["spec"]["ports"]:
            for pod in pods:
                if not any(port["targetPort"] in one.ports() for one in pod.containers()):
                    yield f"Service {name} leads to port {port['targetPort']}, which {pod} lacks"


@invariant
def draining_replicas_keep_their_addresses(fleet):
    for service in fleet.of("Service"):
        if service["spec"].get("clusterIP") == "None" and not service["spec"].get(
                "publishNotReadyAddresses"):
            yield f"Service {service['metadata']['name']} forgets replicas that drain"


@invariant
def workloads_select_their_own_pods(fleet):
    for one in fleet.of("Deployment", "StatefulSet"):
        selector = one["spec"]["selector"]["matchLabels"]
        owners = [pod.owner for pod in fleet.selected(selector)]
        if owners != [one]:
            yield f"{one['kind']} {one['metadata']['name']} selects {len(owners)} templates"
    for one in fleet.of("StatefulSet"):
        if one["spec"]["serviceName"] not in {s["metadata"]["name"] for s in fleet.of("Service")}:
            yield f"StatefulSet {one['metadata']['name']} has no Service"


@invariant
def disruptions_take_one_at_a_time(fleet):
    covered = []
    for budget in fleet.of("PodDisruptionBudget"):
        name, pods = budget["metadata"]["name"], fleet.selected(
            budget["spec"]["selector"]["matchLabels"])
        covered += [pod.component for pod in pods]
        if len(pods) != 1:
            yield f"PodDisruptionBudget {name} covers {len(pods)} kinds of pods"
        if budget["spec"].get("maxUnavailable") != 1 or "minAvailable" in budget["spec"]:
            yield f"PodDisruptionBudget {name} forbids to drain a node, or allows too much"
    for pod in fleet.pods():
        if covered.count(pod.component) != 1:
            yield f"{pod} has {covered.count(pod.component)} PodDisruptionBudgets"


@invariant
def upgrades_go_one_by_one(fleet):
    for one in fleet.of("Deployment"):
        rolling = one["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxUnavailable") != 0:
            yield f"Deployment {one['metadata']['name']} takes pods away before new ones are ready"
    for one in fleet.of("StatefulSet"):
        if one["spec"].get("minReadySeconds", 0) < 10:
            yield f"StatefulSet {one['metadata']['name']} goes on before routers know the new replica"
    for one in fleet.of("LeaderWorkerSet"):
        if one["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] != {
                "maxUnavailable": 1, "maxSurge": 0}:
            yield f"LeaderWorkerSet {one['metadata']['name']} replaces several replicas at once"


@invariant
def a_replica_survives_its_worker(fleet):
    for one in fleet.of("LeaderWorkerSet"):
        if one["spec"]["leaderWorkerTemplate"].get("restartPolicy") != "None":
            yield "a worker that restarts takes its scheduler and the requests along"


@invariant
def pods_are_spread(fleet):
    for pod in fleet.pods():
        spread = [c for c in pod.spec.get("topologySpreadConstraints", [])
                  if c["topologyKey"] == "kubernetes.io/hostname"]
        if not spread or any(pod not in fleet.selected(c["labelSelector"]["matchLabels"])
                             for c in spread):
            yield f"{pod} is not spread over hosts"


@invariant
def several_replicas_can_mount_the_models(fleet):
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in fleet.of("HorizontalPodAutoscaler")}
    for one in fleet.containers("worker"):
        owner = one.pod.owner
        many = owner["spec"].get("replicas", 1) > 1 or owner["metadata"]["name"] in scaled
        modes = [m for c in fleet.of("PersistentVolumeClaim") for m in c["spec"]["accessModes"]]
        if many and modes != ["ReadWriteMany"]:
            yield f"replicas on several nodes cannot mount models: {modes}"


@invariant
def the_autoscaler_owns_the_number_of_replicas(fleet):
    rule = (K8S / "components/autoscaling/prometheus-adapter-rule.yaml").read_text()
    for one in fleet.of("HorizontalPodAutoscaler"):
        spec = one["spec"]
        targets = [t for t in fleet.of(spec["scaleTargetRef"]["kind"])
                   if t["metadata"]["name"] == spec["scaleTargetRef"]["name"]]
        if len(targets) != 1:
            yield "the autoscaler has no target"
        if any("replicas" in target["spec"] for target in targets):
            yield "every apply takes the autoscaler's replicas away"
        if not 2 <= spec["minReplicas"] < spec["maxReplicas"]:
            yield "the autoscaler has no room, or may leave a single replica"
        for metric in spec["metrics"]:
            name = metric["pods"]["metric"]["name"]
            if name not in metric_names():
                yield f"there is no metric {name}"
            if name not in {entry["name"]["matches"] for entry in yaml.safe_load(rule)}:
                yield f"prometheus-adapter has no rule for {name}"


@invariant
def scaling_down_is_slow(fleet):
    for one in fleet.of("HorizontalPodAutoscaler"):
        if one["spec"].get("behavior", {}).get("scaleDown", {}).get(
                "stabilizationWindowSeconds", 300) < 600:
            yield "a short lull throws prefix caches away"


@invariant
def the_gateway_reaches_whole_replicas(fleet):
    for pool in fleet.of("InferencePool"):
        pods = fleet.selected(pool["spec"]["selector"]["matchLabels"])
        if not pods:
            yield "the InferencePool selects no pods"
        for pod in pods:
            roles = {one.role for one in pod.containers()}
            if roles != {"router", "scheduler", "worker"}:
                yield f"{pod} does not serve by itself: {sorted(roles)}"
            for port in pool["spec"]["targetPorts"]:
                if port["number"] not in [one.ports().get("http") for one in pod.containers()]:
                    yield f"{pod} has no HTTP at {port['number']}"


@invariant
def what_others_are_told_of_metrics_is_true(fleet):
    for one in fleet.of("ConfigMap"):
        for name in unknown_metrics("".join(one["data"].values())):
            yield f"ConfigMap {one['metadata']['name']}: there is no metric {name}"


@invariant
def foreign_kinds_are_the_known_ones(fleet):
    """A kind that kustomize cannot merge and schemas do not know is added only on purpose."""
    for one in fleet.objects:
        group = one["apiVersion"].partition("/")[0]
        if "." in group and not group.endswith("k8s.io") or one["kind"].endswith(
                "Set") and one["kind"] not in {"StatefulSet", *CUSTOM}:
            yield f"{one['kind']} of {one['apiVersion']} is not expected"
