"""Starts the real program for tests and observes it from outside."""

import atexit
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "smollm2"
MODEL = "smollm2"
# A build with a sanitizer: an order of magnitude slower, and memory is its own.
SANITIZED = any(name in os.environ.get("FLOTILLA_BIN", "") for name in ("/asan/", "/tsan/"))
LONG = bool(os.environ.get("FLOTILLA_LONG"))


def model_path():
    if path := os.environ.get("FLOTILLA_MODEL"):
        return path
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{cache}/flotilla/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def binary():
    return os.environ.get("FLOTILLA_BIN", str(ROOT / "build/release/bin/flotilla"))


def json_lines(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def wait_until(condition, what, seconds=30):
    """Waits for a condition of another process, by polling."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def shared_library(source, folder):
    """Compiles a C file beside the tests into a library for LD_PRELOAD."""
    library = folder / f"{source}.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library,
                    pathlib.Path(__file__).with_name(f"{source}.c"), "-ldl"], check=True)
    return str(library)


# What the kernel calls the threads of gRPC's pools, which grow with load and do not shrink.
GRPC_POOLS = {"default-executo", "event_engine", "grpc_global_tim", "resolver-execut",
              "timer_manager"}


@dataclasses.dataclass
class Process:
    """What the kernel says about the server."""

    threads: int  # without those of gRPC's pools
    grpc_threads: int
    descriptors: int
    rss_bytes: int


def parse_metrics(page):
    """{name{labels}: value} of a page of /metrics."""
    values = {}
    for line in page.splitlines():
        if match := re.fullmatch(r"([^#\s]+(?:\{.*\})?) (\S+)", line):
            values[match[1]] = float(match[2])
    return values


STARTED = []  # processes that may still run


@atexit.register
def end_what_is_left():
    """Ends processes that failed tests and failed starts have left."""
    for process in STARTED:
        process.kill()


class Program:
    """A `flotilla` process of one role, whose ready file names its ports. `prefix` is a command
    that execs the program; it may set limits, and `preexec_fn` may not, because that forks a process
    in which gRPC's threads run. The log goes to `stderr` if that is given, else to a file."""

    def __init__(self, directory, role, *flags, wait=True, name=None, prefix=(), stderr=None):
        for path in (model_path(), binary()):
            assert os.path.exists(path), f"{path} is missing: run scripts/test"
        self.role = role
        self.ready_file = pathlib.Path(directory) / f"{name or role}.json"
        self.ready_file.unlink(missing_ok=True)
        self.log = open(pathlib.Path(directory) / f"{name or role}.log", "a+b")
        self.process = subprocess.Popen(
            [*prefix, binary(), role, "--ready-file", str(self.ready_file), *flags],
            stdout=subprocess.PIPE, stderr=stderr or self.log)
        STARTED[:] = [one for one in STARTED if one.poll() is None] + [self.process]
        self.ready_line = self.ports = None
        if wait:
            self.wait_ready()

    def wait_ready(self):
        self.ready_line = self.process.stdout.readline().decode()
        assert self.ready_line.startswith("ready "), f"{self.ready_line!r}\n{self.log_text()}"
        self.ports = json.loads(self.ready_file.read_text())
        assert self.ports["pid"] == self.process.pid

    def log_text(self):
        # Open the file again, because the handle of the process shares its file position.
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def members(self):
        """The pids of the ranks and of mpirun of a worker's group, from the last log line that has
        them."""
        def found():  # the thread that writes lines may be later than readiness
            return re.findall(r"worker group ready .*ranks=(\S+) mpirun=(\d+) ", self.log_text())

        wait_until(found, "the log names the group's processes")
        ranks, mpirun = found()[-1]
        return [int(pid) for pid in ranks.split(",")], int(mpirun)

    def kill(self, number):
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def stop(self):
        """Sends SIGTERM; the process must end cleanly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        assert code == 0, f"exit code {code}\n{self.log_text()[-4000:]}"

    def metrics_page(self):
        port = self.ports.get("metrics") or self.ports["http"]
        return httpx.get(f"http://127.0.0.1:{port}/metrics").text

    def metric(self, name, **labels):
        """The sum over all series of `name` that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        series = [value for key, value in parse_metrics(self.metrics_page()).items()
                  if key.split("{")[0] == name and all(w in key for w in wanted)]
        assert series, f"no metric {name} {labels}"
        return sum(series)

    def look(self):
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        status = (proc / "status").read_text()
        in_pools = [name in GRPC_POOLS for name in self.thread_names()]
        return Process(threads=in_pools.count(False), grpc_threads=in_pools.count(True),
                       descriptors=len(os.listdir(proc / "fd")),
                       rss_bytes=int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024)

    def thread_names(self):
        names = []
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                names.append((task / "comm").read_text().strip())
        return names

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(Program):
    """One `flotilla serve`, on free ports; a context manager."""

    def __init__(self, directory, *flags, **options):
        super().__init__(directory, "serve", "--model", model_path(), "--served-model-name",
                         MODEL, "--http-port", "0", "--grpc-port", "0", *flags, **options)
        self.url = f"http://127.0.0.1:{self.ports['http']}"
        self.grpc_address = f"127.0.0.1:{self.ports['grpc']}"
        self.http = httpx.Client(base_url=self.url, timeout=300)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self):
        self.http.close()
        super().stop()

    def post(self, path, **body):
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def metrics(self):
        return parse_metrics(self.metrics_page())

    def used_blocks(self):
        return self.metric("flotilla_kv_blocks", state="used")

    def wait_idle(self):
        """Waits until nothing runs and every block is free again."""
        wait_until(lambda: self.used_blocks() == 0, "used blocks are 0")


def free_ports(count):
    """Ports that nobody listened on a moment ago. They lie outside the kernel's ephemeral range,
    because otherwise a connection could get one before the test listens on it."""
    given = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    sockets = []
    while len(sockets) < count:
        try:
            port = random.randrange(10000, int(given.split()[0]))
            sockets.append(socket.create_server(("127.0.0.1", port)))
        except OSError:  # taken
            pass
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Fleet:
    """A worker, a scheduler and a router, each a process; a context manager. If colocated, the
    scheduler runs the worker group itself."""

    ROLES = ("worker", "scheduler", "router")

    def __init__(self, directory, order=ROLES, extra=None, colocate=False):
        self.directory = directory
        worker_port, scheduler_port = free_ports(2)
        model = ["--model", model_path(), "--served-model-name", MODEL]
        self.flags = {
            "worker": [*model, "--listen-port", str(worker_port)],
            "scheduler": [*(model if colocate else ["--worker", f"127.0.0.1:{worker_port}"]),
                          "--listen-port", str(scheduler_port)],
            "router": ["--scheduler", f"127.0.0.1:{scheduler_port}",
                       "--http-port", "0", "--grpc-port", "0"]}
        for role, flags in (extra or {}).items():
            self.flags[role] += flags
        self.roles = [role for role in self.ROLES if role != "worker" or not colocate]
        for role in order:
            if role in self.roles:
                self.start(role, wait=False)
        for role in self.roles:
            getattr(self, role).wait_ready()
        self.url = f"http://127.0.0.1:{self.router.ports['http']}"
        self.http = httpx.Client(base_url=self.url, timeout=60)

    @property
    def group(self):
        """The process that runs the ranks."""
        return getattr(self, self.roles[0])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.close()
        for role in reversed(self.roles):
            one = getattr(self, role)
            if one.process.poll() is None:
                one.stop()

    def start(self, role, wait=True):
        """Starts a process of this role in the place of one that has ended."""
        setattr(self, role, Program(self.directory, role, *self.flags[role], wait=wait))


class Replicas:
    """Several replicas, each a scheduler and its worker, or (`colocate`) a scheduler that runs
    its group itself, behind several routers; a context manager."""

    def __init__(self, directory, models=(MODEL, MODEL), routers=2, drain_seconds=(30, 30),
                 worker=(), router=(), colocate=False, isas=(), kv_blocks=1024):
        """`isas`: the instruction path of each replica; without it the best that the CPU has."""
        self.directory = directory
        ports = free_ports(2 * len(models) + routers)
        self.http_ports = ports[2 * len(models):]  # clients hold both
        self.flags = {}
        self.processes = {}
        self.addresses = []
        for i, model in enumerate(models):
            worker_port, port = ports[2 * i:2 * i + 2]
            self.addresses.append(f"127.0.0.1:{port}")
            replica = ["--model", model_path(), "--served-model-name", model, "--threads", "1",
                     "--kv-blocks", str(kv_blocks), *worker]
            if isas:
                replica += ["--cpu-isa", isas[i]]
            if not colocate:
                self.flags[f"worker{i}"] = ["--listen-port", str(worker_port), *replica]
                replica = ["--worker", f"127.0.0.1:{worker_port}"]
            self.flags[f"scheduler{i}"] = ["--listen-port", str(port),
                                           "--drain-seconds", str(drain_seconds[i]), *replica]
        # The second router finds the first replica by a DNS name.
        by_name = [f"dns:///localhost:{ports[1]}", *self.addresses[1:]]
        for i in range(routers):
            self.flags[f"router{i}"] = ["--http-port", str(self.http_ports[i]), "--grpc-port", "0",
                                         *router]
            for target in self.addresses if i == 0 else by_name:
                self.flags[f"router{i}"] += ["--scheduler", target]
        self.start(*self.flags)
        self.routers = [httpx.Client(base_url=self.url(i), timeout=60) for i in range(routers)]
        self.wait_up()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for http in self.routers:
            http.close()
        for name in reversed(self.flags):
            if self.processes[name].process.poll() is None:
                self.processes[name].stop()

    def start(self, *names):
        """Starts processes with these names in the place of those that have ended."""
        for name in names:
            role = name.rstrip("0123456789")
            self.processes[name] = Program(self.directory, role, *self.flags[name], wait=False,
                                           name=name)
        for name in names:
            self.processes[name].wait_ready()

    def kill(self, *names):
        for name in names:
            self.processes[name].process.send_signal(signal.SIGKILL)
        for name in names:
            self.processes[name].process.wait(timeout=60)

    def url(self, router=0):
        return f"http://127.0.0.1:{self.http_ports[router]}"

    def up(self, replica, router=0):
        """Whether the router has the replica."""
        pages = parse_metrics(self.processes[f"router{router}"].metrics_page())
        return any(value == 1 for key, value in pages.items()
                   if key.startswith("flotilla_router_replica_up")
                   and key.endswith(f':{self.addresses[replica].split(":")[1]}"}}'))

    def wait_up(self):
        """Waits until every router has every replica; a router is ready with its first one."""
        wait_until(lambda: all(self.up(replica, router) for replica in range(len(self.addresses))
                               for router in range(len(self.routers))), "all replicas are up")

    def sent(self, replica, router=0):
        """Requests that the router sent to the replica."""
        return self.processes[f"router{router}"].metric(
            "flotilla_router_replica_requests_total", replica=self.addresses[replica])

    def replays(self, result, router=0):
        return self.processes[f"router{router}"].metric("flotilla_router_replays_total",
                                                        result=result)
