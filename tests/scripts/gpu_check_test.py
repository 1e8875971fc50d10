"""scripts/gpu_check with a program that only plays gpu_checker: what it runs, when it writes the report,
and what it calls a failure."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"

# Plays gpu_checker: what it does for a command is in `plays`, from FAKE_PLAYS.
CHECKER = f"""#!{sys.executable}
import json, os, pathlib, sys, time
command, simulate = sys.argv[1], "--simulate" in sys.argv
plays = json.loads(os.environ["FAKE_PLAYS"]).get(command, "equal")
report = pathlib.Path(os.environ["FAKE_REPORT"])
with open(os.environ["FAKE_LOG"], "a") as log:
    stages = json.loads(report.read_text())["stages"] if report.exists() else []
    log.write(json.dumps([sys.argv[1:], [s["name"] for s in stages if s["result"] != "pending"]]) + "\\n")
if plays == "no gpu":
    print("error: No GPU can be used: none", file=sys.stderr)
    sys.exit(3)
if plays == "hangs":
    print("first: equal", file=sys.stderr, flush=True)
    time.sleep(600)
if plays == "crashes":
    os.abort()
items = [dict(name="first", cases=7, passed=True), dict(name="a | b", cases=5, passed=plays != "differs")]
if plays == "differs":
    items[1]["difference"] = "0x1 in place of 0x2"
found = dict(passed=plays != "differs", simulated=plays != "lies" and simulate)
if command in ("twins", "ops", "models"):
    found["items"] = items
    items[0]["seconds"] = 1.25
if command == "environment" and not simulate:
    found["gpu"] = {{"name": "GPU of a test", "gpus on this machine": 2}}
if command == "times":
    found["copy, GB/s"] = 1000.0
    found["times"] = [dict(op="add", shape="1 row", microseconds=2.5)]
print(json.dumps(found))
sys.exit(0 if found["passed"] else 1)
"""

# Plays compute-sanitizer: writes its log and runs the program.
SANITIZER = f"""#!{sys.executable}
import os, pathlib, subprocess, sys
words = sys.argv[1:]
log = pathlib.Path(words[words.index("--log-file") + 1])
program = words[words.index("--log-file") + 2:]
status = subprocess.run(program).returncode
lines = ["COMPUTE-SANITIZER", *os.environ["FAKE_SUMMARY"].splitlines()]
log.write_text("".join("========= " + line + "\\n" for line in lines))
sys.exit(9 if "1 error" in lines[-1] or "1 warning" in lines[-1] else status)
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"
        self.tools = self.folder / "tools"
        self.tools.mkdir()
        package = self.folder / "package"
        package.mkdir()
        (package / "manifest.json").write_text(json.dumps({"tree": "0123456789abcdef", "words": "fedc"}))
        self.program(package / "gpu_checker", CHECKER)

    def program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *flags, plays=None, summary=""):
        done = subprocess.run(
            [sys.executable, SCRIPT, "run", "--package", self.folder / "package", "--out", self.out,
             *flags],
            env={"PATH": str(self.tools), "CUDA_HOME": str(self.folder), "FAKE_SUMMARY": summary,
                 "FAKE_LOG": str(self.folder / "log"), "FAKE_REPORT": str(self.out / "report.json"),
                 "FAKE_PLAYS": json.dumps(plays or {})},
            capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        report = json.loads((self.out / "report.json").read_text())
        self.stages = {stage["name"]: stage for stage in report["stages"]}
        self.page = (self.out / "report.md").read_text()
        return done.returncode

    def calls(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def test_all_stages_run_in_order_and_the_report_grows_with_each(self):
        self.assertEqual(self.run_script("--seed", "5"), 0)
        self.assertEqual(self.calls(), [
            [["environment", "--seed", "5"], []],
            [["twins", "--seed", "5"], ["environment"]],
            [["ops", "--seed", "5"], ["environment", "twins"]],
            [["models", "--seed", "5"], ["environment", "twins", "ops"]],
            [["times", "--seed", "5"],
             ["environment", "twins", "ops", "models", "nccl", "memcheck", "racecheck"]]])
        self.assertEqual({name: stage["result"] for name, stage in self.stages.items()}, {
            "environment": "passed", "twins": "passed", "ops": "passed", "models": "passed",
            "nccl": "not built yet", "memcheck": "not run", "racecheck": "not run",
            "times": "passed"})
        for line in ("Tree 0123456789ab, ", ", on GPU of a test, beside ", "Only GPU 0 of 2 was checked.",
                     "| memcheck | not run: compute-sanitizer is not on this machine |",
                     "| first | 7 | equal |  | 1.25 |",
                     "| a \\| b | 5 | equal |  |  |", "| add | 1 row | 2.5 |"):
            self.assertIn(line, self.page)
        self.assertRegex(self.page, r"\| ops \| passed \| 12 \| [0-9.]+ \|")
        self.assertNotIn("simulated", self.page)

    def test_nothing_simulated_is_called_a_result_of_a_gpu(self):
        self.assertEqual(self.run_script("--simulate"), 0)
        self.assertEqual([call[0][0] for call in self.calls()], ["environment", "twins", "ops", "models"])
        self.assertTrue(all("--simulate" in call[0] for call in self.calls()))
        headings = [line for line in self.page.splitlines() if line.startswith("#")]
        self.assertTrue(all("simulated" in line for line in headings), headings)
        self.assertEqual(self.stages["times"]["result"], "not run")

    def test_a_checker_that_simulates_by_itself_fails(self):
        self.assertEqual(self.run_script("--simulate", plays={"ops": "lies"}), 1)
        self.assertEqual(self.stages["ops"]["result"], "failed")

    def test_a_difference_fails_and_later_stages_run(self):
        self.assertEqual(self.run_script(plays={"twins": "differs"}), 1)
        self.assertEqual(self.stages["twins"]["result"], "failed")
        self.assertEqual(self.stages["times"]["result"], "passed")
        self.assertIn("| a \\| b | 5 | different | 0x1 in place of 0x2 |  |", self.page)
        self.assertIn("| twins | failed: different: a | b |".replace("a | b", "a \\| b"), self.page)

    def test_a_stage_that_takes_too_long_is_ended(self):
        self.assertEqual(self.run_script("--limit", "3", "--stage", "twins", "ops",
                                         plays={"twins": "hangs"}), 1)
        self.assertRegex(self.stages["twins"]["note"], "took more than [23] s; its last line: first: equal")
        self.assertEqual(self.stages["ops"]["note"], "no time is left for it")

    def test_a_crash_and_a_missing_gpu_fail(self):
        self.assertEqual(self.run_script("--stage", "environment", "twins",
                                         plays={"environment": "no gpu", "twins": "crashes"}), 1)
        self.assertEqual(self.stages["environment"]["note"],
                         "exit status 3: error: No GPU can be used: none")
        self.assertEqual(self.stages["environment"]["nvidia-smi"], "nvidia-smi is not on this machine")
        self.assertIn("signal 6", self.stages["twins"]["note"])

    def test_sanitizers_run_a_few_cases_and_their_findings_fail(self):
        self.program(self.tools / "compute-sanitizer", SANITIZER)
        flags = ("--stage", "memcheck")
        self.assertEqual(self.run_script(*flags, summary="ERROR SUMMARY: 0 errors"), 0)
        self.assertEqual(self.calls()[0][0], ["ops", "--few", "--seed", "1"])
        self.assertEqual(self.stages["memcheck"]["note"], "ERROR SUMMARY: 0 errors")
        self.assertEqual(self.run_script(*flags, summary="ERROR SUMMARY: 1 error"), 1)
        self.assertEqual(self.run_script(*flags, summary="it found no device"), 1)
        self.assertEqual(self.stages["memcheck"]["note"], "compute-sanitizer wrote no summary")

    def test_hazards_fail_and_are_on_the_page(self):
        self.program(self.tools / "compute-sanitizer", SANITIZER)
        flags = ("--stage", "racecheck")
        clean = "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
        self.assertEqual(self.run_script(*flags, summary=clean), 0)
        self.assertNotIn("```", self.page)
        self.assertEqual(self.run_script(*flags, summary="Warning: Race reported between A\nand B\n\n"
                                         "RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"), 1)
        self.assertIn("1 hazard displayed (0 errors, 1 warning)", self.stages["racecheck"]["note"])
        self.assertIn("\n```\nWarning: Race reported between A\nand B\n```", self.page)

    def test_the_page_has_few_lines_of_lscpu(self):
        self.program(self.tools / "lscpu", f"#!{sys.executable}\n" + '''
print("Model name:         CPU of a test")
print("Flags:              fpu avx2 sse amx_tile")
print("Vulnerability Mds:  Not affected")
''')
        self.assertEqual(self.run_script("--stage", "environment"), 0)
        self.assertIn("```\nModel name:         CPU of a test\nOf its flags: avx2 amx_tile\n```", self.page)
        self.assertIn("Vulnerability", self.stages["environment"]["lscpu"])

    def test_a_folder_that_is_no_package_is_an_error(self):
        done = subprocess.run([sys.executable, SCRIPT, "run", "--package", self.folder, "--out", self.out],
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": str(self.tools)})
        self.assertEqual(done.returncode, 1)
        self.assertIn("is no package of gpu_check. Run scripts/gpu_check build first.", done.stderr)


if __name__ == "__main__":
    unittest.main()
