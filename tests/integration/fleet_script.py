"""scripts/fleet as tests use it."""

import json
import os
import subprocess

from flotilla_server import MODEL, ROOT, binary, model_path


def run_fleet(command, directory, *flags):
    return subprocess.run(
        [ROOT / "scripts/fleet", command, "--dir", directory, *flags], text=True,
        capture_output=True, timeout=120,
        env={**os.environ, "FLOTILLA_BIN": binary(), "FLOTILLA_MODEL": model_path()})


def up(directory, *flags, worker_args=""):
    return run_fleet("up", directory, "--http-port", "0", "--grpc-port", "0",
                     "--prometheus-port", "0", "--scrape-interval", "1",
                     f"--worker-args=--served-model-name {MODEL} {worker_args}", *flags)


class RunningFleet:
    """A fleet of scripts/fleet; a context manager."""

    def __init__(self, directory, *flags, worker_args=""):
        self.directory = directory
        self.started = up(directory, *flags, worker_args=worker_args)
        assert self.started.returncode == 0, self.started.stderr
        self.rows = self.status()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        ended = run_fleet("down", self.directory)
        assert ended.returncode == 0, ended.stderr

    def status(self):
        return json.loads(run_fleet("status", self.directory, "--json").stdout)

    def states(self):
        return {row["role"]: row["state"] for row in self.status()}

    def of(self, role):
        return [row for row in self.rows if row["role"] == role]

    def url(self, router=0):
        return f"http://127.0.0.1:{self.of('router')[router]['ports']['http']}"
