"""Every invariant can fail: the test breaks each in the way that it must prevent."""

import pytest

from invariants import INVARIANTS
from manifests import Fleet, render


class Broken:
    """An overlay that a mutation changes: shortcuts to its parts."""

    def __init__(self, overlay):
        self.fleet = Fleet(render(f"overlays/{overlay}"))

    def __getattr__(self, role):
        """The container of a role, as it is in the object."""
        return self.fleet.containers(role)[0].raw

    def pod(self, role):
        return self.fleet.containers(role)[0].pod

    def the(self, kind, name):
        return self.fleet.get(kind, name)

    def add(self, kind, name, **fields):
        labels = {f"app.kubernetes.io/{key}": "flotilla" for key in ("name", "instance", "part-of")}
        self.fleet.objects.append({"apiVersion": "v1", "kind": kind, "metadata": {
            "name": name, "namespace": "flotilla", "labels": labels}, **fields})

    def argument(self, role, old, new):
        arguments = getattr(self, role)["args"]
        assert sum(a.startswith(old) for a in arguments) == 1
        arguments[:] = [new if a.startswith(old) else a for a in arguments]

    def mount(self, role, path):
        return next(m for m in getattr(self, role)["volumeMounts"] if m["mountPath"] == path)

    def volume(self, role, name):
        return next(v for v in self.pod(role).spec["volumes"] if v["name"] == name)


def _no_sidecar(f):
    spec = f.pod("worker").spec
    spec["containers"].append(spec.pop("initContainers")[0])


# (invariant, overlay, what is done to it)
MUTATIONS = [
    ("every_container_has_three_probes", "cpu-small", lambda f: f.worker.pop("startupProbe")),
    ("probes_ask_what_is_there", "cpu-small",
     lambda f: f.router["livenessProbe"]["httpGet"].update(path="/healthz")),
    ("probes_ask_what_is_there", "cpu-small",
     lambda f: f.worker["readinessProbe"]["tcpSocket"].update(port="scheduler")),
    ("a_router_is_ready_when_it_can_serve", "cpu-small",
     lambda f: f.router["readinessProbe"]["httpGet"].update(path="/health")),
    ("a_router_is_ready_when_it_can_serve", "cpu-small",
     lambda f: f.router["livenessProbe"]["httpGet"].update(path="/ready")),
    ("a_frozen_process_fails_its_liveness_probe", "cpu-small",
     lambda f: f.worker.update(livenessProbe=f.worker["readinessProbe"])),
    ("probes_are_patient", "cpu-small", lambda f: f.worker["startupProbe"].pop("failureThreshold")),
    ("probes_are_patient", "cpu-small", lambda f: f.router["livenessProbe"].update(failureThreshold=1)),
    ("everything_has_requests_and_limits", "cpu-small",
     lambda f: f.router["resources"]["limits"].pop("memory")),
    ("everything_has_requests_and_limits", "cpu-small",
     lambda f: f.router["resources"]["requests"].update(cpu="4")),
    ("a_replica_has_its_cores_for_itself", "cpu-small",
     lambda f: f.scheduler["resources"]["requests"].update(cpu="500m")),
    ("a_replica_has_its_cores_for_itself", "cpu-small",
     lambda f: [r.update(cpu="1500m") for r in f.worker["resources"].values()]),
    ("only_gpu_workers_ask_for_gpus_and_they_reach_gpu_nodes", "gpu",
     lambda f: f.pod("worker").spec.pop("tolerations")),
    ("only_gpu_workers_ask_for_gpus_and_they_reach_gpu_nodes", "gpu",
     lambda f: f.scheduler["resources"]["limits"].update({"nvidia.com/gpu": 1})),
    ("workers_compute_on_the_gpus_that_they_ask_for", "gpu",
     lambda f: f.argument("worker", "--device", "--device=auto")),
    ("workers_compute_on_the_gpus_that_they_ask_for", "cpu-small",
     lambda f: f.argument("worker", "--device", "--device=cuda")),
    ("pods_run_with_the_least_rights", "cpu-small",
     lambda f: f.pod("router").spec["securityContext"].update(runAsUser=0)),
    ("pods_run_with_the_least_rights", "cpu-small",
     lambda f: f.pod("router").spec["securityContext"].pop("seccompProfile")),
    ("pods_run_with_the_least_rights", "cpu-small", lambda f: f.pod("worker").spec.update(hostIPC=True)),
    ("containers_run_with_the_least_rights", "cpu-small",
     lambda f: f.worker["securityContext"].pop("allowPrivilegeEscalation")),
    ("containers_run_with_the_least_rights", "cpu-small",
     lambda f: f.worker["securityContext"]["capabilities"].update(add=["IPC_LOCK"])),
    ("containers_run_with_the_least_rights", "cpu-small",
     lambda f: f.router["ports"][0].update(hostPort=8080)),
    ("root_folders_are_read_only", "cpu-small",
     lambda f: f.scheduler["securityContext"].pop("readOnlyRootFilesystem")),
    ("nobody_talks_to_the_kubernetes_api", "cpu-small",
     lambda f: f.pod("router").spec.pop("automountServiceAccountToken")),
    ("nobody_talks_to_the_kubernetes_api", "cpu-small",
     lambda f: f.pod("router").spec.update(serviceAccountName="default")),
    ("nobody_talks_to_the_kubernetes_api", "cpu-small", lambda f: f.add("ClusterRoleBinding", "x")),
    ("all_run_one_image_with_a_version", "cpu-small", lambda f: f.router.update(image="flotilla:latest")),
    ("all_run_one_image_with_a_version", "multi-host", lambda f: f.worker.update(image="flotilla")),
    ("other_services_stay_out_of_the_environment", "cpu-small",
     lambda f: f.pod("router").spec.pop("enableServiceLinks")),
    ("mounts_and_volumes_agree", "multi-host",
     lambda f: f.pod("scheduler").spec["volumes"].append({"name": "models", "emptyDir": {}})),
    ("mounts_and_volumes_agree", "cpu-small",
     lambda f: f.volume("worker", "tmp").update(hostPath={"path": "/tmp"})),
    ("temporary_files_are_bounded", "cpu-small",
     lambda f: f.volume("router", "tmp")["emptyDir"].pop("sizeLimit")),
    ("workers_share_memory_within_their_limit", "cpu-small",
     lambda f: f.volume("worker", "shm")["emptyDir"].pop("medium")),
    ("workers_share_memory_within_their_limit", "gpu",
     lambda f: f.volume("worker", "shm")["emptyDir"].update(sizeLimit="16Gi")),
    ("models_are_read_only", "cpu-small", lambda f: f.mount("worker", "/models").pop("readOnly")),
    ("models_are_read_only", "cpu-small",
     lambda f: f.the("PersistentVolumeClaim", "flotilla-models")["metadata"].update(name="other")),
    ("models_are_read_only", "cpu-small", lambda f: f.argument("worker", "--model=", "--model=m.gguf")),
    ("secrets_are_referenced_and_read_only", "cpu-small",
     lambda f: f.add("Secret", "flotilla-fleet", data={})),
    ("secrets_are_referenced_and_read_only", "cpu-small",
     lambda f: f.volume("router", "api-keys")["secret"].pop("defaultMode")),
    ("files_that_flags_name_are_mounted", "cpu-small",
     lambda f: f.mount("router", "/etc/flotilla/fleet").update(mountPath="/etc/fleet")),
    ("every_wire_and_client_is_authenticated", "multi-host",
     lambda f: f.worker["args"].remove("--fleet-secret-file=/etc/flotilla/fleet/fleet-secret")),
    ("every_wire_and_client_is_authenticated", "inference-gateway",
     lambda f: f.scheduler["args"].append("--api-keys-file=/etc/flotilla/api-keys/api-keys")),
    ("the_grace_period_covers_preStop_and_drain", "cpu-small",
     lambda f: f.pod("router").spec.update(terminationGracePeriodSeconds=115)),
    ("the_grace_period_covers_preStop_and_drain", "cpu-small",
     lambda f: f.argument("scheduler", "--drain-seconds", "--drain-seconds=200")),
    ("the_grace_period_covers_preStop_and_drain", "multi-host",
     lambda f: f.worker["args"].append("--stop-step-seconds=60")),
    ("what_drains_is_told_to", "cpu-small",
     lambda f: f.argument("router", "--drain-seconds", "--drain-seconds=0")),
    ("clients_are_turned_away_before_the_router_ends", "cpu-small", lambda f: f.router.pop("lifecycle")),
    ("clients_are_turned_away_before_the_router_ends", "inference-gateway",
     lambda f: f.scheduler.pop("lifecycle")),
    ("a_worker_outlives_its_scheduler", "cpu-small", _no_sidecar),
    ("a_worker_outlives_its_scheduler", "multi-host", lambda f: f.worker.pop("lifecycle")),
    ("last_words_are_kept", "cpu-small", lambda f: f.worker.pop("terminationMessagePolicy")),
    ("objects_are_labelled_and_in_one_namespace", "multi-host",
     lambda f: f.the("PodDisruptionBudget", "flotilla-replica-worker")["metadata"].pop("namespace")),
    ("objects_are_labelled_and_in_one_namespace", "cpu-small",
     lambda f: f.pod("worker").labels.pop("app.kubernetes.io/instance")),
    ("the_namespace_refuses_privileges", "cpu-small",
     lambda f: f.the("Namespace", "flotilla")["metadata"]["labels"].clear()),
    ("objects_are_few_of_a_kind_and_name", "cpu-small",
     lambda f: f.fleet.objects.append(f.the("Service", "flotilla"))),
    ("the_program_knows_its_flags", "cpu-small", lambda f: f.router["args"].append("--replicas=2")),
    ("variables_are_defined", "cpu-small",
     lambda f: f.argument("worker", "--kv-blocks", "--kv-blocks=$(KV_BLOCK)")),
    ("settings_are_used", "cpu-small", lambda f: f.argument("worker", "--kv-blocks", "--kv-blocks=9")),
    ("changed_settings_roll_the_pods", "cpu-small",
     lambda f: (f.add("ConfigMap", "settings", data={}),
                f.worker["envFrom"][0]["configMapRef"].update(name="settings"))),
    ("scheduler_and_worker_agree", "multi-host",
     lambda f: f.argument("worker", "--max-seqs", "--max-seqs=32")),
    ("ports_are_those_that_flags_open", "cpu-small",
     lambda f: f.argument("worker", "--metrics-port", "--metrics-port=9100")),
    ("ports_are_those_that_flags_open", "cpu-small",
     lambda f: f.argument("router", "--host", "--host=127.0.0.1")),
    ("ports_are_those_that_flags_open", "inference-gateway",
     lambda f: f.router["ports"][0].update(containerPort=7002)),
    ("routers_find_schedulers", "cpu-small",
     lambda f: f.argument("router", "--scheduler", "--scheduler=dns:///flotilla:7002")),
    ("routers_find_schedulers", "multi-host",
     lambda f: f.the("Service", "flotilla-scheduler")["spec"]["selector"].update(
         {"app.kubernetes.io/component": "replica-worker"})),
    ("routers_find_schedulers", "inference-gateway",
     lambda f: f.argument("router", "--scheduler", "--scheduler=127.0.0.1:7001")),
    ("schedulers_find_workers", "cpu-small",
     lambda f: f.argument("scheduler", "--worker", "--worker=127.0.0.1:7002")),
    ("schedulers_find_workers", "multi-host",
     lambda f: f.argument("scheduler", "--worker", "--worker=$(POD_NAME)-1.flotilla:7001")),
    ("workers_find_their_hosts", "multi-host-model",
     lambda f: f.argument("worker", "--hosts=", "--hosts=$(POD_NAME),$(POD_NAME)-1")),
    ("workers_find_their_hosts", "multi-host-model",
     lambda f: f.argument("worker", "--hosts-port", "--hosts-port=7001")),
    ("workers_find_their_hosts", "multi-host-model",
     lambda f: f.argument("worker", "--tp", "--tp=3")),
    ("workers_find_their_hosts", "multi-host-model",
     lambda f: f.worker["args"].remove("--hosts=$(POD_NAME),$(POD_NAME)-1.flotilla-replica")),
    ("workers_find_their_hosts", "multi-host-model",
     lambda f: f.node["resources"]["limits"].update(cpu="1")),
    ("services_lead_somewhere", "cpu-small",
     lambda f: f.the("Service", "flotilla")["spec"]["ports"][0].update(targetPort="web")),
    ("services_lead_somewhere", "inference-gateway",
     lambda f: f.the("Service", "flotilla")["spec"]["selector"].update(
         {"app.kubernetes.io/component": "router"})),
    ("draining_replicas_keep_their_addresses", "cpu-small",
     lambda f: f.the("Service", "flotilla-scheduler")["spec"].pop("publishNotReadyAddresses")),
    ("workloads_select_their_own_pods", "cpu-small",
     lambda f: f.the("Deployment", "flotilla-router")["spec"]["selector"]["matchLabels"].pop(
         "app.kubernetes.io/component")),
    ("workloads_select_their_own_pods", "cpu-small",
     lambda f: f.the("StatefulSet", "flotilla-replica")["spec"].update(serviceName="replicas")),
    ("disruptions_take_one_at_a_time", "cpu-small",
     lambda f: f.fleet.objects.remove(f.the("PodDisruptionBudget", "flotilla-router"))),
    ("disruptions_take_one_at_a_time", "multi-host",
     lambda f: f.the("PodDisruptionBudget", "flotilla-replica")["spec"]["selector"]["matchLabels"].pop(
         "app.kubernetes.io/component")),
    ("disruptions_take_one_at_a_time", "cpu-small",
     lambda f: f.the("PodDisruptionBudget", "flotilla-replica").update(
         spec={"minAvailable": 1, "selector": {"matchLabels": f.pod("worker").labels}})),
    ("upgrades_go_one_by_one", "cpu-small",
     lambda f: f.the("Deployment", "flotilla-router")["spec"].pop("strategy")),
    ("upgrades_go_one_by_one", "cpu-small",
     lambda f: f.the("StatefulSet", "flotilla-replica")["spec"].pop("minReadySeconds")),
    ("upgrades_go_one_by_one", "multi-host",
     lambda f: f.the("LeaderWorkerSet", "flotilla-replica")["spec"]["rolloutStrategy"][
         "rollingUpdateConfiguration"].update(maxUnavailable=2)),
    ("a_replica_survives_its_worker", "multi-host",
     lambda f: f.the("LeaderWorkerSet", "flotilla-replica")["spec"]["leaderWorkerTemplate"].pop(
         "restartPolicy")),
    ("pods_are_spread", "multi-host",
     lambda f: f.pod("worker").spec["topologySpreadConstraints"][0]["labelSelector"][
         "matchLabels"].update({"app.kubernetes.io/component": "replica"})),
    ("several_replicas_can_mount_the_models", "multi-replica",
     lambda f: f.the("PersistentVolumeClaim", "flotilla-models")["spec"].update(
         accessModes=["ReadWriteOnce"])),
    ("the_autoscaler_owns_the_number_of_replicas", "multi-replica",
     lambda f: f.the("StatefulSet", "flotilla-replica")["spec"].update(replicas=2)),
    ("the_autoscaler_owns_the_number_of_replicas", "multi-replica",
     lambda f: f.the("HorizontalPodAutoscaler", "flotilla-replica")["spec"]["metrics"][0]["pods"][
         "metric"].update(name="flotilla_queue_tokens")),
    ("the_autoscaler_owns_the_number_of_replicas", "multi-replica",
     lambda f: f.the("HorizontalPodAutoscaler", "flotilla-replica")["spec"]["scaleTargetRef"].update(
         name="flotilla")),
    ("scaling_down_is_slow", "multi-replica",
     lambda f: f.the("HorizontalPodAutoscaler", "flotilla-replica")["spec"]["behavior"].pop("scaleDown")),
    ("the_gateway_reaches_whole_replicas", "inference-gateway",
     lambda f: f.pod("scheduler").spec["containers"].remove(f.scheduler)),
    ("the_gateway_reaches_whole_replicas", "inference-gateway",
     lambda f: f.the("InferencePool", "flotilla")["spec"]["targetPorts"][0].update(number=8000)),
    ("what_others_are_told_of_metrics_is_true", "inference-gateway",
     lambda f: f.the("ConfigMap", "flotilla-endpoint-picker")["data"].update(x="flotilla_kv_usage")),
    ("foreign_kinds_are_the_known_ones", "cpu-small", lambda f: f.add("DaemonSet", "x")),
    ("nothing_is_allowed_by_default", "cpu-small",
     lambda f: f.fleet.objects.remove(f.the("NetworkPolicy", "flotilla-default-deny"))),
    ("policies_tell_ports_by_number", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-replica")["spec"]["ingress"][0]["ports"].append(
         {"port": "worker"})),
    ("only_clients_reach_the_api", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-router")["spec"]["ingress"][0]["from"].append(
         {"namespaceSelector": {}})),
    ("only_clients_reach_the_api", "inference-gateway",
     lambda f: f.the("NetworkPolicy", "flotilla-replica")["spec"]["ingress"].clear()),
    ("routers_reach_schedulers", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-router")["spec"]["egress"].pop(0)),
    ("schedulers_reach_workers", "multi-host",
     lambda f: f.the("NetworkPolicy", "flotilla-replica-worker")["spec"]["ingress"].pop(0)),
    ("ranks_reach_each_other", "multi-host-model",
     lambda f: f.the("NetworkPolicy", "flotilla-replica-node")["spec"]["ingress"][0]["ports"][0].pop(
         "endPort")),
    ("ranks_reach_each_other", "multi-host-model",
     lambda f: f.the("NetworkPolicy", "flotilla-replica")["spec"]["egress"].pop(0)),
    ("internal_ports_are_closed_to_others", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-replica")["spec"]["ingress"][0]["ports"].append(
         {"port": 7001})),
    ("internal_ports_are_closed_to_others", "multi-host",
     lambda f: f.the("NetworkPolicy", "flotilla-replica-worker")["spec"]["ingress"][1]["ports"].append(
         {"port": 7001})),
    ("prometheus_reaches_the_metrics", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-replica")["spec"]["ingress"].pop(1)),
    # What kustomize does to this selector when it adds labels to selectors.
    ("names_resolve_where_they_are_used", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-router")["spec"]["egress"][1]["to"][0]["podSelector"][
         "matchLabels"].update({"app.kubernetes.io/name": "flotilla"})),
    ("nobody_reaches_out_of_the_cluster", "cpu-small",
     lambda f: f.the("NetworkPolicy", "flotilla-router")["spec"]["egress"].append(
         {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]})),
]


@pytest.mark.parametrize("name,overlay,mutate", MUTATIONS,
                         ids=[f"{i}-{one[0]}" for i, one in enumerate(MUTATIONS)])
def test_mutation_is_seen(name, overlay, mutate):
    broken = Broken(overlay)
    assert list(INVARIANTS[name](broken.fleet)) == []
    mutate(broken)
    assert list(INVARIANTS[name](broken.fleet)) != []


def test_every_invariant_is_broken_once():
    assert set(INVARIANTS) == {name for name, _, _ in MUTATIONS}
