"""A process of a fleet that scripts/fleet started: where it is, and in which state.

The script reads /proc, because the processes are not its children.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import urllib.error
import urllib.request

HOST = "127.0.0.1"
# The flag of each port that a ready file names.
PORT_FLAGS = {name: f"--{name}-port" for name in ("http", "grpc", "health", "listen", "metrics")}


@dataclasses.dataclass(frozen=True)
class Proc:
    """What the kernel says about a process; `start` tells it from a later one with its pid."""

    parent: int
    start: int
    status: str


def look(pid):
    """The process with this id. None: there is none, or it is dead and not yet reaped."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else Proc(int(fields[1]), int(fields[19]), fields[0])


def descendants(pid):
    """{pid: Proc} of children, of their children, and so on."""
    all_procs = {int(name): proc for name in os.listdir("/proc")
                 if name.isdigit() and (proc := look(name))}
    found, parents = {}, {pid}
    while parents:
        children = {p: proc for p, proc in all_procs.items() if proc.parent in parents}
        found |= children
        parents = set(children)
    return found


def get(url):
    """(status, text) of a GET; (0, "") when nobody answers within 2 s."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError):
        return 0, ""


def send(pid, start, number):
    if (proc := look(pid)) and proc.start == start:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclasses.dataclass
class Member:
    """One process of the fleet, as fleet.json has it."""

    name: str
    role: str
    replica: int | None
    command: list
    log: str
    ready_file: str | None = None
    pid: int = 0
    start: int = 0  # of the Proc
    ports: dict = dataclasses.field(default_factory=dict)

    def proc(self):
        proc = look(self.pid)
        return proc if proc and proc.start == self.start else None

    def launch(self):
        pathlib.Path(self.log).parent.mkdir(exist_ok=True)
        with open(self.log, "ab") as log:
            # It gets a session of its own, so that the terminal's Ctrl-C does not reach it.
            child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log, start_new_session=True)
        proc = look(child.pid)
        self.pid, self.start = child.pid, proc.start if proc else 0
        return child

    def keep_ports(self):
        """From now on it is launched with the ports that it had, by which the others know it."""
        flags = {PORT_FLAGS[name]: port for name, port in self.ports.items()
                 if self.role != "prometheus"}  # whose address is in its command
        kept, words = [], iter(self.command)
        for word in words:
            if word in flags:
                next(words, None)  # its value
            elif word.split("=")[0] not in flags:
                kept.append(word)
        self.command = kept + [word for flag, port in flags.items() for word in (flag, str(port))]

    def send(self, number):
        send(self.pid, self.start, number)

    def read_ports(self):
        """Reads the ports from the ready file when this process has written it."""
        with contextlib.suppress(FileNotFoundError, TypeError):
            ports = json.loads(pathlib.Path(self.ready_file).read_text())
            if ports.pop("pid") == self.pid:
                self.ports = ports
        return bool(self.ports)

    def metrics_address(self):
        return f"{HOST}:{self.ports.get('metrics') or self.ports['http']}"

    def url(self):
        if port := self.ports.get("http") or self.ports.get("metrics"):
            return f"http://{HOST}:{port}" + ("/metrics" if "metrics" in self.ports else "")
        return ""

    def state(self):
        """ready, not ready (it lives and cannot work), starting, stopped (SIGSTOP) or dead."""
        proc = self.proc()
        if proc is None:
            return "dead"
        if proc.status in "Tt":
            return "stopped"
        if not self.ports and not self.read_ports():
            return "starting"
        if self.role == "router":
            ready = get(f"{self.url()}/ready")[0] == 200
        elif self.role == "prometheus":
            ready = get(f"{self.url()}/-/ready")[0] == 200
        elif self.role == "scheduler":
            page = get(self.url())[1]
            ready = re.search(r"^flotilla_scheduler_group_ready\S* 1$", page, re.M) is not None
        else:
            ready = get(self.url())[0] == 200
        return "ready" if ready else "not ready"

    def ranks(self):
        """(rank, pid, stopped) of the ranks that are processes of their own, started by mpirun."""
        found = []
        runs_them = self.role in ("worker", "scheduler")
        for pid, proc in descendants(self.pid).items() if runs_them else ():
            with contextlib.suppress(OSError):
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found += [(int(value.partition(b"=")[2]), pid, proc.status in "Tt")
                          for value in environment if value.startswith(b"OMPI_COMM_WORLD_RANK=")]
        return sorted(found)

    def log_end(self, lines=15):
        """The end of its log, indented, and the path of the log."""
        text = pathlib.Path(self.log).read_text(errors="replace")
        return "".join(f"    {line}\n" for line in text.splitlines()[-lines:]) + f"    ({self.log})"
