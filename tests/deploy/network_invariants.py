"""Invariants of the NetworkPolicies: which pod reaches which, computed as a cluster does."""

from invariants import invariant

DNS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
       "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
CLIENTS = {"flotilla-access": "client", "kubernetes.io/metadata.name": "shop"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
STRANGERS = {"kubernetes.io/metadata.name": "default"}
HOME = {"kubernetes.io/metadata.name": "flotilla"}


def _matches(selector, labels):
    assert set(selector) <= {"matchLabels"}, f"not understood: {selector}"
    return selector.get("matchLabels", {}).items() <= labels.items()


def _admits(peers, namespace, labels):
    """Whether a rule's peers include a pod with these labels in a namespace with those labels."""
    for peer in peers:
        assert set(peer) <= {"namespaceSelector", "podSelector"}, f"not understood: {peer}"
        in_namespace = (_matches(peer["namespaceSelector"], namespace)
                        if "namespaceSelector" in peer else namespace == HOME)
        if in_namespace and _matches(peer.get("podSelector", {}), labels):
            return True
    return False


def _policies(fleet, pod, direction):
    return [one["spec"] for one in fleet.of("NetworkPolicy")
            if direction in one["spec"]["policyTypes"] and
            _matches(one["spec"]["podSelector"], pod.labels)]


def _opens(port, number):
    return port["port"] <= number <= port.get("endPort", port["port"])


def _port_of(pod, name):
    return next(one.ports()[name] for one in pod.containers() if name in one.ports())


def _takes(fleet, pod, number, namespace, labels):
    policies = _policies(fleet, pod, "Ingress")
    return not policies or any(
        _admits(rule["from"], namespace, labels) and any(_opens(p, number) for p in rule["ports"])
        for spec in policies for rule in spec.get("ingress", []))


def lets_in(fleet, pod, port, namespace, labels):
    """Whether `pod` accepts connections from there to its port of this name."""
    return _takes(fleet, pod, _port_of(pod, port), namespace, labels)


def lets_out(fleet, pod, number, namespace, labels):
    """Whether `pod` may connect to the port with that number there."""
    policies = _policies(fleet, pod, "Egress")
    return not policies or any(
        _admits(rule["to"], namespace, labels) and any(_opens(p, number) for p in rule["ports"])
        for spec in policies for rule in spec.get("egress", []))


def reaches(fleet, source, target, port):
    return (lets_out(fleet, source, _port_of(target, port), HOME, target.labels) and
            lets_in(fleet, target, port, HOME, source.labels))


def _with(fleet, role):
    return [(one.pod, one) for one in fleet.containers(role)]


@invariant
def nothing_is_allowed_by_default(fleet):
    bare = [one["spec"] for one in fleet.of("NetworkPolicy")
            if not one["spec"].get("ingress") and not one["spec"].get("egress") and
            {"Ingress", "Egress"} <= set(one["spec"]["policyTypes"])]
    for pod in fleet.pods():
        if not any(_matches(spec["podSelector"], pod.labels) for spec in bare):
            yield f"{pod} is open where no policy speaks of it"


@invariant
def policies_tell_ports_by_number(fleet):
    """Plug-ins resolve port names themselves, and not all know the ports of a sidecar."""
    for policy in fleet.of("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []) + policy["spec"].get("egress", []):
            for port in rule["ports"]:
                if not isinstance(port["port"], int):
                    yield f"NetworkPolicy {policy['metadata']['name']} names port {port['port']}"


@invariant
def only_clients_reach_the_api(fleet):
    for pod, one in _with(fleet, "router"):
        for port in ("http", "grpc"):
            if not lets_in(fleet, pod, port, CLIENTS, {}):
                yield f"clients do not reach {port} of {one}"
            if lets_in(fleet, pod, port, STRANGERS, {}):
                yield f"everybody reaches {port} of {one}"


@invariant
def routers_reach_schedulers(fleet):
    for source, router in _with(fleet, "router"):
        for target, scheduler in _with(fleet, "scheduler"):
            if source is not target and router.flags(fleet)["--scheduler"].startswith("dns:") and \
                    not reaches(fleet, source, target, "scheduler"):
                yield f"{router} does not reach {scheduler}"


@invariant
def schedulers_reach_workers(fleet):
    for source, scheduler in _with(fleet, "scheduler"):
        for target, worker in _with(fleet, "worker"):
            if source.component != target.component and not reaches(fleet, source, target, "worker"):
                yield f"{scheduler} does not reach {worker}"


@invariant
def ranks_reach_each_other(fleet):
    """Ranks reach each other on any port that the kernel gave them."""
    ends = [one.pod for role in ("worker", "node") for one in fleet.containers(role)]
    for source in ends:
        for target in ends:
            alone = source.owner is target.owner and source is target
            if alone or not any(one.role == "node" for pod in (source, target)
                                for one in pod.containers()):
                continue
            for number in (1024, 65535):
                if not (lets_out(fleet, source, number, HOME, target.labels) and
                        _takes(fleet, target, number, HOME, source.labels)):
                    yield f"ranks of {source} do not reach port {number} of {target}"


@invariant
def internal_ports_are_closed_to_others(fleet):
    # Ranks talk on any port, so a replica and its hosts are wide open to each other.
    for role, port, friends in (("scheduler", "scheduler", {"router", "node"}),
                                ("worker", "worker", {"scheduler", "node"}),
                                ("node", "node", {"worker", "node"})):
        for target, one in _with(fleet, role):
            for namespace in (CLIENTS, MONITORING, STRANGERS):
                if lets_in(fleet, target, port, namespace, {}):
                    yield f"{namespace} reaches {port} of {one}"
            for source in fleet.pods():
                roles = {c.role for c in source.containers()}
                if not roles & friends and lets_in(fleet, target, port, HOME, source.labels):
                    yield f"{source} reaches {port} of {one}"


@invariant
def prometheus_reaches_the_metrics(fleet):
    for role, port in (("router", "http"), ("scheduler", "sched-metrics"),
                       ("worker", "worker-metrics"), ("node", "node-metrics")):
        for pod, one in _with(fleet, role):
            if not lets_in(fleet, pod, port, MONITORING, {}):
                yield f"Prometheus does not reach {port} of {one}"
            if lets_in(fleet, pod, port, STRANGERS, {}):
                yield f"everybody reaches {port} of {one}"


@invariant
def names_resolve_where_they_are_used(fleet):
    for one in fleet.containers():
        named = [flag for beside in one.pod.containers()
                 for flag in ("--scheduler", "--worker", "--hosts")
                 if flag in beside.flags(fleet) and "127.0.0.1" not in beside.flags(fleet)[flag]]
        dns = lets_out(fleet, one.pod, 53, DNS["namespaceSelector"]["matchLabels"],
                       {"k8s-app": "kube-dns"})
        if bool(named) != dns:
            yield f"{one} {'cannot ask' if named else 'may ask'} the cluster's DNS"


@invariant
def nobody_reaches_out_of_the_cluster(fleet):
    for policy in fleet.of("NetworkPolicy"):
        for rule in policy["spec"].get("egress", []):
            if not rule.get("to") or not rule.get("ports"):
                yield f"NetworkPolicy {policy['metadata']['name']} opens more than it names"
            for peer in rule.get("to", []):
                if "ipBlock" in peer:
                    yield f"NetworkPolicy {policy['metadata']['name']} allows addresses"
