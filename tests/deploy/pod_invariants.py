"""Invariants of pods and containers: probes, resources, rights, volumes, how they end."""

from invariants import invariant
from manifests import size

# The pages that answer a probe, by role (docs/api.md; only routers have more than /metrics).
PAGES = {"router": {"/health", "/ready"}, "scheduler": {"/metrics"}, "worker": {"/metrics"},
         "node": {"/metrics"}}
START_SECONDS = 1200  # the time that a replica may take to load its model


@invariant
def every_container_has_three_probes(fleet):
    for one in fleet.containers():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe not in one.raw:
                yield f"{one} has no {probe}"


@invariant
def probes_ask_what_is_there(fleet):
    for one in fleet.containers():
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = one.raw.get(name, {})
            action = probe.get("httpGet") or probe.get("tcpSocket") or {}
            if action.get("port") not in one.ports():
                yield f"{name} of {one} asks port {action.get('port')}, which it does not have"
            if "httpGet" in probe and action["path"] not in PAGES[one.role]:
                yield f"{name} of {one} asks for {action['path']}, which it does not have"


@invariant
def a_router_is_ready_when_it_can_serve(fleet):
    for one in fleet.containers("router"):
        if one.raw["readinessProbe"].get("httpGet", {}).get("path") != "/ready":
            yield f"readiness of {one} is not /ready"
        if one.raw["livenessProbe"].get("httpGet", {}).get("path") != "/health":
            yield f"liveness of {one} depends on others"


@invariant
def a_frozen_process_fails_its_liveness_probe(fleet):
    for one in fleet.containers():
        if "httpGet" not in one.raw["livenessProbe"]:
            yield f"liveness of {one}: the kernel accepts connections of a frozen process"


@invariant
def probes_are_patient(fleet):
    for one in fleet.containers():
        for name, least in (("startupProbe", START_SECONDS), ("livenessProbe", 60)):
            probe = one.raw[name]
            seconds = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
            if seconds < least:
                yield f"{name} of {one} gives up after {seconds} s, before {least} s"


@invariant
def everything_has_requests_and_limits(fleet):
    for one in fleet.containers():
        resources = one.raw.get("resources", {})
        for what in ("cpu", "memory", "ephemeral-storage"):
            wanted = resources.get("requests", {}).get(what)
            most = resources.get("limits", {}).get(what)
            if wanted is None or most is None:
                yield f"{one} has no request or no limit of {what}"
            elif size(wanted) > size(most):
                yield f"{one} requests more {what} than its limit"


@invariant
def a_replica_has_its_cores_for_itself(fleet):
    """The cores are whole, and the request equals the limit, so that the static CPU manager gives
    exclusive cores."""
    for one in fleet.containers("scheduler") + fleet.containers("worker") + fleet.containers("node"):
        resources = one.raw.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for what in ("cpu", "memory"):
            if requests.get(what) != limits.get(what):
                yield f"{one} requests another amount of {what} than its limit"
        if size(limits.get("cpu", 0)) % 1:
            yield f"{one} has a fraction of a core"


def _gpus(one):
    return int(one.raw.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))


@invariant
def only_gpu_workers_ask_for_gpus_and_they_reach_gpu_nodes(fleet):
    for one in fleet.containers():
        gpus = _gpus(one)
        if gpus and one.role not in ("worker", "node"):
            yield f"{one} asks for a GPU"
        tolerated = {t.get("key") for t in one.pod.spec.get("tolerations", [])}
        if gpus and "nvidia.com/gpu" not in tolerated:
            yield f"{one} asks for a GPU, but does not tolerate the taint of such nodes"


@invariant
def workers_compute_on_the_gpus_that_they_ask_for(fleet):
    """With auto a worker that cannot use its GPU leaves it idle; with cuda a worker needs one."""
    for one in fleet.containers("worker"):
        device = one.flags(fleet).get("--device", "auto")
        if bool(_gpus(one)) != device.startswith("cuda"):
            yield f"{one} asks for {_gpus(one)} GPUs, and has --device={device}"


@invariant
def pods_run_with_the_least_rights(fleet):
    for pod in fleet.pods():
        context = pod.spec.get("securityContext", {})
        if not context.get("runAsNonRoot") or context.get("runAsUser", 0) < 10000:
            yield f"{pod} may run as root or as a user of the node"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{pod} has no seccomp profile"
        for shared in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(shared):
                yield f"{pod} has {shared}"


@invariant
def containers_run_with_the_least_rights(fleet):
    for one in fleet.containers():
        context = one.raw.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield f"{one} may gain privileges"
        if context.get("capabilities", {}) != {"drop": ["ALL"]}:
            yield f"{one} keeps capabilities"
        if any("hostPort" in port for port in one.raw.get("ports", [])):
            yield f"{one} takes a port of the node"


@invariant
def root_folders_are_read_only(fleet):
    for one in fleet.containers():
        on_gpu = "nvidia.com/gpu" in one.raw.get("resources", {}).get("limits", {})
        if one.raw.get("securityContext", {}).get("readOnlyRootFilesystem") is not True and not on_gpu:
            yield f"{one} may write to its image"


@invariant
def nobody_talks_to_the_kubernetes_api(fleet):
    for pod in fleet.pods():
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod} has a token"
        if pod.spec.get("serviceAccountName") not in {
                one["metadata"]["name"] for one in fleet.of("ServiceAccount")}:
            yield f"{pod} has an account that is not made here"
    for one in fleet.of("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
        yield f"{one['kind']} {one['metadata']['name']} gives rights"
    for one in fleet.of("ServiceAccount"):
        if one.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {one['metadata']['name']} mounts its token"


@invariant
def all_run_one_image_with_a_version(fleet):
    images = {one.raw["image"] for one in fleet.containers()}
    if len(images) != 1:
        yield f"there are several images: {sorted(images)}"
    for image in images:
        tag = image.rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest") and "@sha256:" not in image:
            yield f"image {image} has no version"


@invariant
def other_services_stay_out_of_the_environment(fleet):
    for pod in fleet.pods():
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod} gets variables of every Service in its namespace"


@invariant
def mounts_and_volumes_agree(fleet):
    for pod in fleet.pods():
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        mounts = {mount["name"] for one in pod.containers()
                  for mount in one.raw.get("volumeMounts", [])}
        if volumes != mounts:
            yield f"{pod} has volumes {sorted(volumes)} and mounts {sorted(mounts)}"
        for volume in pod.spec.get("volumes", []):
            if "hostPath" in volume:
                yield f"{pod} mounts a folder of the node"


def _mounts(one):
    volumes = {volume["name"]: volume for volume in one.pod.spec.get("volumes", [])}
    return {mount["mountPath"]: (mount, volumes.get(mount["name"], {}))
            for mount in one.raw.get("volumeMounts", [])}


@invariant
def temporary_files_are_bounded(fleet):
    for one in fleet.containers():
        folder = _mounts(one).get("/tmp", ({}, {}))[1].get("emptyDir")
        if not (folder or {}).get("sizeLimit"):
            yield f"{one} has no bounded /tmp"


@invariant
def workers_share_memory_within_their_limit(fleet):
    for one in fleet.containers("worker") + fleet.containers("node"):
        shm = (_mounts(one).get("/dev/shm", ({}, {}))[1].get("emptyDir") or {})
        if shm.get("medium") != "Memory" or "sizeLimit" not in shm:
            yield f"{one} has no bounded /dev/shm"
        elif 4 * size(shm["sizeLimit"]) > size(one.raw["resources"]["limits"]["memory"]):
            yield f"/dev/shm of {one} may take more than a quarter of its memory"


@invariant
def models_are_read_only(fleet):
    for one in fleet.containers("worker") + fleet.containers("node"):
        # The worker configures the ranks of a host.
        model = one.flags(fleet).get("--model", "/models/x.gguf" if one.role == "node" else "")
        mount, volume = _mounts(one).get("/models", ({}, {}))
        claim = volume.get("persistentVolumeClaim", {})
        if not model.startswith("/models/") or not model.endswith(".gguf"):
            yield f"{one} has no model file in /models: {model}"
        if not mount.get("readOnly") or not claim.get("readOnly"):
            yield f"{one} may write to the models"
        if claim.get("claimName") not in {
                c["metadata"]["name"] for c in fleet.of("PersistentVolumeClaim")}:
            yield f"{one} mounts a claim that is not made here"


@invariant
def secrets_are_referenced_and_read_only(fleet):
    if fleet.of("Secret"):
        yield "a Secret is part of the manifests"
    for one in fleet.containers():
        for path, (mount, volume) in _mounts(one).items():
            if "secret" in volume and (not mount.get("readOnly") or
                                       volume["secret"].get("defaultMode") != 0o440):
                yield f"{path} of {one} may be written or is read by others"


@invariant
def files_that_flags_name_are_mounted(fleet):
    for one in fleet.containers():
        secrets = [path for path, (_, volume) in _mounts(one).items() if "secret" in volume]
        flags = one.flags(fleet)
        files = [value for value in flags.values() if value.startswith("/etc/")]
        for file in files:
            if file.rpartition("/")[0] not in secrets:
                yield f"{one} is told of {file}, which no Secret is mounted at"
        for path in secrets:
            if not any(file.startswith(path + "/") for file in files):
                yield f"{one} does not use {path}"


@invariant
def every_wire_and_client_is_authenticated(fleet):
    for one in fleet.containers():
        if "--fleet-secret-file" not in one.flags(fleet):
            yield f"{one} does not have the fleet's secret"
        if ("--api-keys-file" in one.flags(fleet)) != (one.role == "router"):
            yield f"{one}: routers, and they alone, have the keys of clients"


@invariant
def the_grace_period_covers_preStop_and_drain(fleet):
    for one in fleet.containers():
        flags = one.flags(fleet)
        drain = int(flags.get("--drain-seconds", flags.get("--stop-step-seconds", 0)))
        grace = one.pod.spec.get("terminationGracePeriodSeconds", 30)
        if grace < one.pre_stop_seconds() + drain + 10:
            yield (f"{one} is killed after {grace} s: preStop {one.pre_stop_seconds()} s, "
                   f"drain {drain} s and 10 s for the end do not fit")


@invariant
def what_drains_is_told_to(fleet):
    for one in fleet.containers("router") + fleet.containers("scheduler"):
        if int(one.flags(fleet).get("--drain-seconds", 0)) < 30:
            yield f"{one} does not wait for its requests"


@invariant
def clients_are_turned_away_before_the_router_ends(fleet):
    """In one pod, they are also turned away before the scheduler begins to refuse them."""
    for one in fleet.containers("router"):
        for other in one.pod.containers():
            if other.role in ("router", "scheduler") and other.pre_stop_seconds() < 10:
                yield f"{other} gets SIGTERM while clients are still sent to it"


@invariant
def a_worker_outlives_its_scheduler(fleet):
    drains = [int(one.flags(fleet).get("--drain-seconds", 0)) for one in fleet.containers("scheduler")]
    for one in fleet.containers("worker") + fleet.containers("node"):
        beside = any(other.role == "scheduler" for other in one.pod.containers())
        if beside and not one.sidecar:
            yield f"{one} is no sidecar, so it ends while its scheduler drains"
        if not beside and one.pre_stop_seconds() < max(drains):
            yield f"{one} ends before its scheduler has drained"


@invariant
def last_words_are_kept(fleet):
    for one in fleet.containers():
        if one.raw.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            yield f"{one} ends without saying why"
