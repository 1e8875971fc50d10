"""Rules and dashboards as they are deployed: promtool judges the rules, every alert is
tested and explained, and every panel says what to look for.

tests/integration/monitoring_test.py shows, with a real Prometheus, that the metrics exist and
the panels have data.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"


def run(*command, cwd=ROOT):
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=60)


def alerts():
    return re.findall(r"- alert: (\w+)", (PROMETHEUS / "rules/alerts.yml").read_text())


class Rules(unittest.TestCase):
    def promtool(self, *arguments, cwd=PROMETHEUS):
        done = run("promtool", *arguments, cwd=cwd)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_configuration_and_rules_are_valid(self):
        self.promtool("check", "config", "prometheus.yml")
        self.promtool("check", "rules", "--lint=all", "--lint-fatal",
                      *(f"rules/{path.name}" for path in (PROMETHEUS / "rules").iterdir()))

    def test_alerts_fire_and_do_not(self):
        tests = sorted(path.name for path in (PROMETHEUS / "tests").glob("*.yml"))
        self.promtool("test", "rules", *tests, cwd=PROMETHEUS / "tests")

    def test_each_alert_has_a_case_of_both_kinds(self):
        text = "".join(path.read_text() for path in (PROMETHEUS / "tests").glob("*.yml"))
        cases = re.findall(r"alertname: (\w+)\n +exp_alerts:( \[\])?", text)
        self.assertGreater(len(alerts()), 15)
        for alert in alerts():
            self.assertIn((alert, " []"), cases, "no case in which it is silent")
            self.assertIn((alert, ""), cases, "no case in which it fires")

    def test_each_alert_is_explained(self):
        text = (ROOT / "docs/operations.md").read_text()
        explained = re.findall(r"^\| `(Flotilla\w+)` \|", text, re.M)
        self.assertEqual(sorted(explained), sorted(alerts()))


class Kubernetes(unittest.TestCase):
    """The labels that pods' targets get. Debian's Prometheus knows no Kubernetes, so the
    pods' meta labels come from a file."""

    LABELS = {"phase": "Running", "label_app_kubernetes_io_name": "flotilla"}

    def labels(self, *pods):
        """[the labels of its target, or None if it has none] of each pod."""
        config = (PROMETHEUS / "kubernetes.yml").read_text()
        config = re.sub(r"kubernetes_sd_configs:\n *- role: pod",
                        "file_sd_configs:\n      - files: [pods.json]", config)
        config = re.sub(r"rule_files:\n.*\n", "", config)
        targets = [{"targets": [f"10.0.0.{i}:1"],
                    "labels": {f"__meta_kubernetes_{'pod_' * (key != 'namespace')}{key}": value
                               for key, value in {**self.LABELS, **pod}.items()}}
                   for i, pod in enumerate(pods)]
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "prometheus.yml").write_text(config)
            (pathlib.Path(folder) / "pods.json").write_text(json.dumps(targets))
            done = run("promtool", "check", "service-discovery", "--timeout=1s", "prometheus.yml",
                       "flotilla", cwd=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {one["discoveredLabels"]["__address__"]: one["labels"] or None
                 for one in json.loads(done.stdout)}
        return [found[f"10.0.0.{i}:1"] for i in range(len(pods))]

    def test_role_and_replica(self):
        router, scheduler, rank, named, other, proxy, port, sidecar, host = self.labels(
            {"container_name": "router", "container_port_name": "http", "name": "r-0",
             "namespace": "ns"},
            {"container_name": "scheduler", "container_port_name": "sched-metrics", "name": "g-0"},
            {"container_name": "worker", "container_port_name": "metrics", "name": "g-1-0",
             "label_leaderworkerset_sigs_k8s_io_group_index": "1"},
            {"container_name": "worker", "container_port_name": "metrics", "name": "g-2",
             "label_flotilla_replica": "blue"},
            {"container_name": "worker", "container_port_name": "metrics",
             "label_app_kubernetes_io_name": "another"},
            {"container_name": "proxy", "container_port_name": "http"},
            {"container_name": "worker", "container_port_name": "worker"},
            {"container_name": "worker", "container_port_name": "worker-metrics", "name": "g-3",
             "container_init": "true"},
            {"container_name": "node", "container_port_name": "node-metrics", "name": "g-4-1",
             "label_leaderworkerset_sigs_k8s_io_group_index": "4"})
        self.assertEqual((router["role"], router["pod"], router["namespace"]),
                         ("router", "r-0", "ns"))
        self.assertNotIn("replica", router)
        self.assertEqual((scheduler["role"], scheduler["replica"]), ("scheduler", "g-0"))
        self.assertEqual((rank["role"], rank["replica"]), ("worker", "1"))
        self.assertEqual((named["role"], named["replica"]), ("worker", "blue"))
        self.assertEqual((sidecar["role"], sidecar["replica"]), ("worker", "g-3"))
        self.assertEqual((host["role"], host["replica"]), ("node", "4"))
        self.assertEqual([other, proxy, port], [None] * 3)


class Dashboards(unittest.TestCase):
    def boards(self):
        found = [json.loads(path.read_text())
                 for path in sorted((GRAFANA / "dashboards").glob("*"))]
        self.assertEqual(len(found), 5)
        return found

    def test_they_are_what_the_generator_writes(self):
        done = run(sys.executable, str(GRAFANA / "generate.py"), "--check")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_panel_explains_itself(self):
        for board in self.boards():
            for panel in board["panels"]:
                if panel["type"] == "row":
                    continue
                with self.subTest(board=board["title"], panel=panel["title"]):
                    self.assertGreater(len(panel["description"]), 20)
                    self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                    self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                    self.assertTrue(panel["targets"])
                    for target in panel["targets"]:
                        self.assertTrue(target["legendFormat"])

    def test_variables_are_those_that_are_used(self):
        for board in self.boards():
            defined = {one["name"] for one in board["templating"]["list"]}
            self.assertEqual(defined, {"datasource", "model", "replica", "instance"})
            used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"])))
            self.assertLessEqual(used - {"__rate_interval"}, defined)

    def test_panels_do_not_overlap(self):
        for board in self.boards():
            taken = set()
            for panel in board["panels"]:
                at = panel["gridPos"]
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                         for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(cells & taken, panel["title"])
                self.assertLessEqual(at["x"] + at["w"], 24)
                taken |= cells
            ids = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(ids), len(set(ids)))


if __name__ == "__main__":
    unittest.main()
