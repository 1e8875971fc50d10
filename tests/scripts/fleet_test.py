"""scripts/fleet with a program that only plays the roles: which processes it starts with
which flags, and what it says of them. With the real program: tests/integration."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Plays a role: its arguments are the state; a worker has --tp x --pp "ranks" as mpirun has.
FAKE = f"""#!{sys.executable}
import http.server, json, os, subprocess, sys, pathlib
flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
role = sys.argv[1]
pages = dict(worker={{"/metrics": ""}},
             router={{"/ready": "", "/v1/models": '{{"data": [{{"id": "m"}}]}}'}},
             scheduler={{"/metrics": 'flotilla_scheduler_group_ready{{model="m"}} 1\\n'}})[role]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in pages else 404)
        self.end_headers()
        self.wfile.write(pages.get(self.path, "").encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
ranks = int(flags.get("--tp", 1)) * int(flags.get("--pp", 1)) if role == "worker" else 1
for rank in range(ranks if ranks > 1 else 0):
    subprocess.Popen(["sleep", "600"], env=dict(os.environ, OMPI_COMM_WORLD_RANK=str(rank)))
port = server.server_address[1]
ports = dict(http=port, grpc=1) if role == "router" else dict(listen=port, metrics=port)
ready = pathlib.Path(flags["--ready-file"])
ready.with_suffix(".new").write_text(json.dumps(dict(ports, pid=os.getpid())))
ready.with_suffix(".new").rename(ready)
server.serve_forever()
"""


class Fleet(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.directory = pathlib.Path(self.folder.name) / "fleet"
        self.program = pathlib.Path(self.folder.name) / "flotilla"
        self.program.write_text(FAKE)
        self.program.chmod(0o755)
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.run_fleet, "down")

    def run_fleet(self, command, *flags):
        return subprocess.run([ROOT / "scripts/fleet", command, "--dir", self.directory, *flags],
                              env={**os.environ, "FLOTILLA_BIN": str(self.program)}, text=True,
                              capture_output=True, timeout=60)

    def up(self, *flags):
        done = self.run_fleet("up", "--model", "/m.gguf", "--no-prometheus", "--http-port", "0",
                              "--grpc-port", "0", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(self.run_fleet("status", "--json").stdout)
        self.assertEqual({row["state"] for row in rows}, {"ready"})
        return rows

    def command(self, row):
        words = pathlib.Path(f"/proc/{row['pid']}/cmdline").read_text().split("\0")[1:-1]
        return words[words.index(row["role"]):]

    def test_every_router_knows_every_scheduler(self):
        rows = self.up("--replicas", "2", "--routers", "3")
        self.assertEqual([(row["role"], row["replica"]) for row in rows],
                         [("worker", 0), ("worker", 1), ("scheduler", 0), ("scheduler", 1)]
                         + [("router", None)] * 3)
        workers, schedulers, routers = rows[:2], rows[2:4], rows[4:]
        for worker, scheduler in zip(workers, schedulers):
            self.assertEqual(self.command(scheduler)[:3],
                             ["scheduler", "--worker", f"127.0.0.1:{worker['ports']['listen']}"])
        for router in routers:
            addresses = [word for one in schedulers
                         for word in ("--scheduler", f"127.0.0.1:{one['ports']['listen']}")]
            self.assertEqual(self.command(router)[:5], ["router", *addresses])

    def test_ranks_are_seen_and_end_with_their_worker(self):
        rows = self.up("--tp", "2", "--pp", "2", "--routers", "1")
        worker = rows[0]
        self.assertIn("--tp 2 --pp 2", " ".join(self.command(worker)))
        ranks = [row for row in rows if row["role"] == "rank"]
        self.assertEqual([(row["rank"], row["replica"]) for row in ranks], [(i, 0) for i in range(4)])
        self.assertIn("have ended", self.run_fleet("down").stdout)
        for row in rows:
            stat = pathlib.Path(f"/proc/{row['pid']}/stat")
            self.assertTrue(not stat.exists() or stat.read_text().rpartition(") ")[2][0] == "Z")

    def test_one_rank_needs_no_flag(self):
        command = self.command(self.up("--worker-args=--kv-blocks 64")[0])
        self.assertEqual(command[:3], ["worker", "--model", "/m.gguf"])
        self.assertEqual(command[3:5], ["--kv-blocks", "64"])
        self.assertFalse({"--tp", "--pp", "--threads"} & set(command))

    def test_a_pid_that_was_used_again_is_somebody_else(self):
        self.up("--routers", "1")
        file = self.directory / "fleet.json"
        members = json.loads(file.read_text())
        self.run_fleet("down")
        other = subprocess.Popen(["sleep", "600"])
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        members[0]["pid"] = other.pid
        file.write_text(json.dumps(members[:1]))
        self.assertEqual(json.loads(self.run_fleet("status", "--json").stdout)[0]["state"], "dead")
        self.run_fleet("down")
        self.assertIsNone(other.poll())


if __name__ == "__main__":
    unittest.main()
