"""Starts the real program for tests and looks at it from outside."""

import dataclasses
import json
import os
import pathlib
import re
import signal
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
    """Waits for a condition of another process, which can only be asked."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@dataclasses.dataclass
class Process:
    """What the kernel says about the server."""

    threads: int
    descriptors: int
    rss_bytes: int


class Server:
    """One `flotilla serve`, on free ports; a context manager."""

    def __init__(self, directory, *flags):
        for path in (model_path(), binary()):
            assert os.path.exists(path), f"{path} is missing: run scripts/test"
        ready = pathlib.Path(directory) / "ready.json"
        command = [binary(), "serve", "--model", model_path(), "--served-model-name", MODEL,
                   "--http-port", "0", "--grpc-port", "0", "--ready-file", str(ready), *flags]
        self.log = open(pathlib.Path(directory) / "server.log", "w+b")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), f"{line!r}\n{self.log_text()}"
        ports = json.loads(ready.read_text())
        assert ports["pid"] == self.process.pid
        self.ready_line = line
        self.url = f"http://127.0.0.1:{ports['http']}"
        self.grpc_address = f"127.0.0.1:{ports['grpc']}"
        self.http = httpx.Client(base_url=self.url, timeout=300)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def log_text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self):
        """SIGTERM; the server must end cleanly."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        assert code == 0, f"exit code {code}\n{self.log_text()[-4000:]}"

    def post(self, path, **body):
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def metrics(self):
        """{name{labels}: value} of /metrics."""
        values = {}
        for line in self.http.get("/metrics").text.splitlines():
            if match := re.fullmatch(r"([^#\s]+(?:\{.*\})?) (\S+)", line):
                values[match[1]] = float(match[2])
        return values

    def metric(self, name, **labels):
        """The sum over all series of `name` that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        series = [value for key, value in self.metrics().items()
                  if key.split("{")[0] == name and all(w in key for w in wanted)]
        assert series, f"no metric {name} {labels}"
        return sum(series)

    def used_blocks(self):
        return self.metric("flotilla_kv_blocks", state="used")

    def wait_idle(self):
        """Until nothing runs: every block is free again."""
        wait_until(lambda: self.used_blocks() == 0, "used blocks are 0")

    def look(self):
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        status = (proc / "status").read_text()
        return Process(threads=int(re.search(r"Threads:\s+(\d+)", status)[1]),
                       descriptors=len(os.listdir(proc / "fd")),
                       rss_bytes=int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
