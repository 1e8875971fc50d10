#!/usr/bin/env python3
"""Runs the pods of an overlay on this machine, as Kubernetes would, and uses them.

Containers get what the manifests say: arguments, settings, secrets, the model, a root
that is read-only except for their folders, their user (which has no name here) and no
capabilities. They start and end in Kubernetes' order, and the script runs probes as a kubelet
does. All pods share one network, where every name is an address of this machine; one pod of
each kind runs.

The script starts itself again in a network and a mount namespace of its own, so that ports
are free and nothing stays behind; that needs root. It prints its results as JSON:

  rehearsal.py OVERLAY PROGRAM MODEL
"""

import concurrent.futures
import fcntl
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import fleet_invariants
from manifests import ROOT, Fleet, render

KEY = "rehearsal-0123456789abcdef"
SECRETS = {"api-keys": f"rehearsal {KEY}\n", "fleet-secret": "0123456789abcdef" * 4 + "\n"}
START_SECONDS = 60  # of a small model; what the manifests allow is an invariant
WORDS = 160


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


class Machine:
    """A copy-on-write image of this machine's files, and an empty network."""

    def __init__(self, folder, program):
        mount("-t", "tmpfs", "tmpfs", folder)
        for name in ("upper", "work", "root"):
            (folder / name).mkdir()
        self.root = folder / "root"
        mount("-t", "overlay", "overlay", "-o",
              f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work", self.root)
        target = self.root / "usr/local/bin/flotilla"
        target.write_bytes(pathlib.Path(program).read_bytes())
        target.chmod(0o755)
        for name in ("proc", "sys", "dev"):
            mount("--rbind", f"/{name}", self.root / name)
        with socket.socket() as one:  # does what `ip link set lo up` does
            fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", 1))

    def name_hosts(self, addresses):
        hosts = self.root / "etc/hosts"
        hosts.write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))


class Process:
    """A running container."""

    def __init__(self, machine, fleet, container, model, folder):
        self.container, self.drain_seconds = container, 0
        view = folder / f"{container.pod.component}-{container.name}"
        view.mkdir()
        script = [f"hostname {pod_name(container.pod)}", f"mount --rbind {machine.root} {view}"]
        script += self._volumes(machine, container, model, view, folder)
        script += [f"mount -o remount,ro,bind {view}"]
        context = container.pod.spec["securityContext"]
        as_user = ["setpriv", f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}",
                   "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        script += ['exec "$@"']
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **image_environment()}
        self.log = open(folder / f"{view.name}.log", "wb")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--uts", "sh", "-ec", "; ".join(script), "sh", "chroot", view, *as_user,
             "/usr/local/bin/flotilla", *self.arguments(fleet)],
            env=environment, stdout=self.log, stderr=self.log)

    @staticmethod
    def _volumes(machine, container, model, view, folder):
        """Commands that mount the container's volumes below `view`."""
        volumes = {volume["name"]: volume for volume in container.pod.spec["volumes"]}
        for one in container.raw["volumeMounts"]:
            path, volume = one["mountPath"], volumes[one["name"]]
            (machine.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
            target = f"{view}{path}"
            if "emptyDir" in volume:
                yield f"mount -t tmpfs -o mode=1777,size=1g tmpfs {target}"
            elif "secret" in volume:
                yield f"mount --bind {secret_folder(folder, one['name'], container)} {target}"
            else:
                yield f"mount --rbind {model} {target}; mount -o remount,ro,bind {target}"

    def arguments(self, fleet):
        """The arguments of the manifests, without flags that the program does not know yet."""
        values = {k: v for k, v in self.container.variables(fleet).items() if v is not None}
        values |= {"POD_NAME": pod_name(self.container.pod), "GROUP_NETWORK": "127.0.0.0/8"}
        known = fleet_invariants.known_flags(self.container.role)
        arguments = [re.sub(r"\$\(([A-Z_]+)\)", lambda m: values[m[1]], a)
                     for a in self.container.raw["args"]]
        return [a for a in arguments if not a.startswith("--") or a.split("=")[0] in known]

    def probe(self, name):
        probe = self.container.raw[name]
        action = probe.get("httpGet") or probe["tcpSocket"]
        port, timeout = self.container.ports()[action["port"]], probe.get("timeoutSeconds", 1)
        try:
            if "tcpSocket" in probe:
                socket.create_connection(("127.0.0.1", port), timeout).close()
                return True
            return get(port, action["path"], timeout) == 200
        except OSError:
            return False

    def wait(self, name):
        """Waits until the probe succeeds; returns how many seconds that took."""
        start = time.monotonic()
        while not self.probe(name):
            assert self.process.poll() is None, f"{self.container} ended"
            assert time.monotonic() < start + START_SECONDS, f"{name} fails: {self.container}"
            time.sleep(0.05)
        return round(time.monotonic() - start, 2)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        assert code == 0, f"{self.container} ends with {code}"

    def log_text(self):
        # Open the file again, because the handle of the process shares its file position.
        return pathlib.Path(self.log.name).read_text(errors="replace")[-4000:]


def pod_name(pod):
    """The name of the first pod. The second pod of a LeaderWorkerSet's replica is named after its
    leader."""
    return f"{pod.owner['metadata']['name']}-0" + ("-1" if pod.part == " worker" else "")


def image_environment():
    """The environment that the image sets."""
    line = re.search(r"^ENV (.*)$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)[1]
    return dict(one.split("=") for one in line.split())


def secret_folder(folder, name, container):
    """Writes a Secret as a kubelet does: links through a folder that is exchanged as a whole."""
    target = folder / f"secret-{name}"
    if not target.exists():
        data = target / "..2026_01_01"
        data.mkdir(parents=True)
        (target / "..data").symlink_to(data.name)
        file = {"fleet": "fleet-secret"}.get(name, name)
        (data / file).write_text(SECRETS[file])
        (data / file).chmod(0o440)
        os.chown(data / file, 0, container.pod.spec["securityContext"]["fsGroup"])
        (target / file).symlink_to(f"..data/{file}")
    return target


def get(port, path, timeout):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^(\w+)\{[^}]*\} (\S+)$", page, re.MULTILINE)}


def generate(port, model, started=None):
    """Streams an answer of WORDS tokens; the first token sets `started`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": WORDS, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    tokens = []
    for line in response:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                tokens += choice.get("token_ids") or []
            if started is not None and tokens and not started.done():
                started.set_result(True)
    return tokens


def start_pod(pod, launch):
    """Starts sidecars first, each after the one before has started; then the rest at once."""
    running = []
    for container in [c for c in pod.containers() if c.sidecar]:
        running.append(launch(container))
        running[-1].wait("startupProbe")
    running += [launch(c) for c in pod.containers() if not c.sidecar]
    for one in running:
        one.wait("startupProbe")
    return running


def end_pod(processes):
    """Ends ordinary containers at once, and then the sidecars, the last one first."""
    for one in [p for p in processes if not p.container.sidecar]:
        one.process.send_signal(signal.SIGTERM)
    for one in [p for p in processes if not p.container.sidecar]:
        code = one.process.wait(timeout=60)
        assert code == 0, f"{one.container} ends with {code}"
    for one in reversed([p for p in processes if p.container.sidecar]):
        one.end()


def rehearse(overlay, program, model, folder):
    fleet = Fleet(render(f"overlays/{overlay}"))
    machine = Machine(folder, program)
    # The second pod of a replica looks like another host by its address, which is on loopback, too.
    machine.name_hosts({"localhost": "127.0.0.1", "flotilla-scheduler": "127.0.0.1",
                        "flotilla-replica-0": "127.0.0.1",
                        "flotilla-replica-0-1": "127.0.0.2",
                        "flotilla-replica-0-1.flotilla-replica": "127.0.0.2"})
    worker = fleet.containers("worker")[0]
    models = folder / "models"
    models.mkdir()
    (models / worker.variables(fleet)["MODEL_FILE"]).touch()
    mount("--bind", model, models / worker.variables(fleet)["MODEL_FILE"])

    processes = []

    preparing = threading.Lock()  # guards folders that pods share

    def launch(container):
        with preparing:
            processes.append(Process(machine, fleet, container, models, folder))
            return processes[-1]

    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            starts = [pool.submit(start_pod, pod, launch) for pod in fleet.pods()]
            for start in concurrent.futures.as_completed(starts):
                start.result()  # the first failure is the cause of the others
            pods = [start.result() for start in starts]
            seen = {"roles": {}, "overlay": overlay}
            for one in processes:
                one.wait("readinessProbe")
                assert one.probe("livenessProbe")
                status = pathlib.Path(f"/proc/{one.process.pid}/status").read_text()
                seen["roles"][one.container.role] = {
                    "uid": int(re.search(r"Uid:\t(\d+)", status)[1]),
                    "capabilities": re.search(r"CapBnd:\t(\w+)", status)[1]}
            seen["lent"] = any("daemon started for a worker group" in one.log_text()
                               for one in processes if one.container.role == "node")
            http_port = fleet.containers("router")[0].ports()["http"]
            name = worker.variables(fleet)["SERVED_MODEL_NAME"]
            seen["undisturbed"] = generate(http_port, name)
            values = metrics(worker.ports()["worker-metrics"])
            seen["worker_bytes"] = (values["flotilla_worker_weight_bytes"] +
                                    values["flotilla_worker_buffer_bytes"])
            # End the replica while it answers, and then the rest.
            started = concurrent.futures.Future()
            answer = pool.submit(generate, http_port, name, started)
            started.result(timeout=60)
            kinds = ["replica", "replica-worker", "replica-node", "router"]
            order = sorted(pods, key=lambda p: kinds.index(p[0].container.pod.component))
            for pod in order:
                if pod is order[-1]:
                    seen["drained"] = answer.result(timeout=60)
                end_pod(pod)
            return seen
    except BaseException:
        for one in processes:  # the log of another process often says why one is missing
            print(f"== {one.container}\n{one.log_text()}", file=sys.stderr)
        raise
    finally:
        for one in processes:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()


def main():
    overlay, program, model = sys.argv[1:]
    os.environ["FLOTILLA_BIN"] = program  # the tests read its flags
    if os.environ.setdefault("REHEARSAL", "outside") == "outside":
        os.environ["REHEARSAL"] = "inside"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private",
                              sys.executable, *sys.argv])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rehearsal-"))
    try:
        print(json.dumps(rehearse(overlay, program, model, folder)))
    finally:
        # All files are in a tmpfs there. Nothing is deleted through mounts.
        subprocess.run(["umount", "--recursive", "--lazy", folder], check=True)
        folder.rmdir()


if __name__ == "__main__":
    main()
