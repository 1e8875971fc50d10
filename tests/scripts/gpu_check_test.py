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
if plays == "lacks":
    print(json.dumps({{"passed": False, "not run": "NCCL cannot be opened", "simulated": simulate}}))
    sys.exit(3)
if plays == "crashes":
    os.abort()
if plays == "fills the disk":
    report.with_name("report.json.new").symlink_to("/dev/full")
items = [dict(name="first", cases=7, passed=True), dict(name="a | b", cases=5, passed=plays != "differs")]
if plays == "differs":
    items[1]["difference"] = "0x1 in place of 0x2"
found = dict(passed=plays != "differs", simulated=plays != "lies" and simulate)
if command in ("twins", "ops", "models"):
    found["items"] = items
    items[0]["seconds"] = 1.25
if command == "nccl":
    found.update(items=items[:1], gpus=2, nccl="a fake NCCL" if simulate else "NCCL 2.28.9")
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
        self.environment = {
            "PATH": str(self.tools), "CUDA_HOME": str(self.folder), "FAKE_PLAYS": "{}",
            "FAKE_LOG": str(self.folder / "log"), "FAKE_REPORT": str(self.out / "report.json")}

    def program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *flags, plays=None, summary=""):
        done = subprocess.run(
            [sys.executable, SCRIPT, "run", "--package", self.folder / "package", "--out", self.out,
             *flags],
            env={**self.environment, "FAKE_SUMMARY": summary,
                 "FAKE_PLAYS": json.dumps(plays or {})},
            capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        report = json.loads((self.out / "report.json").read_text())
        self.stages = {stage["name"]: stage for stage in report["stages"]}
        self.page = (self.out / "report.md").read_text()
        self.said = done.stderr.splitlines()
        return done.returncode

    def refused(self, status, *command, script=SCRIPT, **environment):
        """The lines in which the script says why it ends with this exit status."""
        done = subprocess.run([sys.executable, script, *command], capture_output=True, text=True,
                              timeout=60, check=False, env={**self.environment, **environment})
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr.splitlines()

    def run_refused(self, status, out=None, *flags, **environment):
        return self.refused(status, "run", "--package", self.folder / "package",
                            "--out", out or self.out, *flags, **environment)

    def tree(self):
        """A tree in which everything is built already. Returns its script."""
        tree = self.folder / "tree"
        for name in ("scripts/lib.sh", "kernels/cuda/ptx.h", "kernels/cuda/simt.h",
                     "tests/gpu_check/twins.h", "build/release/tests/gpu_check/gpu_checker",
                     "build/release/tests/gpu_check/gpu_checker_host.o"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text("new")
        for tool in ("ninja", "git"):
            self.program(self.tools / tool, f"#!{sys.executable}\n")
        self.program(self.tools / "bash", f"#!{sys.executable}\nimport os\n"
                     "open(os.environ['FAKE_LOG'], 'w').close()\n"
                     "raise SystemExit(int(os.environ.get('FAKE_BUILD', '0')))\n")
        script = tree / "scripts" / "gpu_check"
        script.write_text(SCRIPT.read_text())
        return script

    def calls(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def test_all_stages_run_in_order_and_the_report_grows_with_each(self):
        self.assertEqual(self.run_script("--seed", "5"), 0)
        self.assertEqual(self.calls(), [
            [["environment", "--seed", "5"], []],
            [["twins", "--seed", "5"], ["environment"]],
            [["ops", "--seed", "5"], ["environment", "twins"]],
            [["models", "--seed", "5"], ["environment", "twins", "ops"]],
            [["nccl", "--seed", "5"], ["environment", "twins", "ops", "models"]],
            [["times", "--seed", "5"],
             ["environment", "twins", "ops", "models", "nccl", "memcheck", "racecheck"]]])
        self.assertEqual({name: stage["result"] for name, stage in self.stages.items()}, {
            "environment": "passed", "twins": "passed", "ops": "passed", "models": "passed",
            "nccl": "passed", "memcheck": "not run", "racecheck": "not run",
            "times": "passed"})
        for line in ("Tree 0123456789ab, ", ", on GPU of a test, beside ",
                     "Only GPU 0 of 2 was checked, except over NCCL.",
                     "Ranks have one of 2 GPUs each, and exchange over NCCL 2.28.9.",
                     "| memcheck | not run: compute-sanitizer is not on this machine |",
                     "| first | 7 | equal |  | 1.25 |",
                     "| a \\| b | 5 | equal |  |  |", "| add | 1 row | 2.5 |"):
            self.assertIn(line, self.page)
        self.assertRegex(self.page, r"\| ops \| passed \| 12 \| [0-9.]+ \|")
        self.assertNotIn("simulated", self.page)

    def test_nothing_simulated_is_called_a_result_of_a_gpu(self):
        self.assertEqual(self.run_script("--simulate"), 0)
        self.assertEqual([call[0][0] for call in self.calls()],
                         ["environment", "twins", "ops", "models", "nccl"])
        self.assertIn("Ranks have one of 2 simulated GPUs each, and exchange over a fake NCCL.",
                      self.page)
        self.assertTrue(all("--simulate" in call[0] for call in self.calls()))
        headings = [line for line in self.page.splitlines() if line.startswith("#")]
        self.assertTrue(all("simulated" in line for line in headings), headings)
        self.assertEqual(self.stages["times"]["result"], "not run")

    def test_a_machine_that_lacks_what_a_stage_needs_does_not_run_it(self):
        self.assertEqual(self.run_script(plays={"nccl": "lacks"}), 0)
        self.assertEqual(self.stages["times"]["result"], "passed")
        self.assertIn("| nccl | not run: NCCL cannot be opened |", self.page)
        self.assertIn("Only GPU 0 of 2 was checked.", self.page)
        self.assertNotIn("Ranks have", self.page)

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

    def test_a_build_replaces_only_what_is_its_own(self):
        script = self.tree()
        package = self.folder / "package"
        (package / "old").touch()
        self.refused(0, "build", "--out", package, script=script)
        self.assertEqual({path.name for path in package.iterdir()}, {
            "gpu_check", "gpu_checker", "gpu_checker_host.o", "manifest.json", "sources"})
        self.assertEqual((package / "gpu_checker").read_text(), "new")
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused(0, "build", "--out", empty, script=script)
        self.refused(0, "build", "--out", self.folder / "a" / "b", script=script)
        self.assertTrue((self.folder / "a" / "b" / "manifest.json").exists())
        self.assertEqual([path.name for path in (self.folder / "a").iterdir()], ["b"])

    def test_a_build_refuses_what_is_not_its_own_before_it_builds(self):
        script = self.tree()
        foreign = self.folder / "foreign"
        foreign.mkdir()
        (foreign / "letter").write_text("dear")
        no_package = "it is not empty and no package of gpu_check, so it is not replaced."
        for manifest in (None, "[]", '{"name": "an app"}', "no JSON"):
            if manifest is not None:
                (foreign / "manifest.json").write_text(manifest)
            self.assertEqual(self.refused(2, "build", "--out", foreign, script=script),
                             [f"error: --out {foreign}: {no_package}"])
        letter = foreign / "letter"
        self.assertEqual(self.refused(2, "build", "--out", letter, script=script),
                         [f"error: --out {letter}: it exists and is no folder."])
        self.assertEqual(self.refused(2, "build", "--out", letter / "x", script=script),
                         [f"error: --out {letter / 'x'}: it cannot be made: Not a directory."])
        self.assertEqual(letter.read_text(), "dear")
        self.assertFalse((self.folder / "log").exists(), "it built something")

    def test_a_build_that_fails_leaves_the_package(self):
        package = self.folder / "package"
        lines = self.refused(1, "build", "--out", package, script=self.tree(), FAKE_BUILD="1")
        self.assertEqual(lines, ["error: gpu_checker cannot be built, so there is no new package."])
        self.assertEqual((package / "gpu_checker").read_text(), CHECKER)

    def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(self):
        file = self.folder / "file"
        file.touch()
        self.out.mkdir()
        (self.out / "report.md.new").mkdir()
        reasons = {file: "it exists and is no folder.",
                   file / "x": "it cannot be made: Not a directory.",
                   pathlib.Path("/proc/x"): "it cannot be made: No such file or directory.",
                   self.out: "no report can be written into it: Is a directory."}
        for out, reason in reasons.items():
            self.assertEqual(self.run_refused(2, out), [f"error: --out {out}: {reason}"])
        self.assertFalse((self.folder / "log").exists(), "it ran something")

    def test_a_disk_that_is_full_ends_the_run(self):
        lines = self.run_refused(1, None, "--stage", "twins", "ops",
                                 FAKE_PLAYS='{"twins": "fills the disk"}')
        self.assertEqual(lines[-1], f"error: the report in {self.out} cannot be written: "
                         "No space left on device.")
        self.assertEqual([call[0][0] for call in self.calls()], ["twins"])

    def test_a_package_whose_checker_cannot_be_executed_is_an_error(self):
        checker = self.folder / "package" / "gpu_checker"

        def last_line():
            line = self.run_refused(1, None, "--stage", "twins")[-1]
            begin = f"error: {checker} cannot be executed: "
            end = ". Run `scripts/gpu_check build`."
            self.assertTrue(line.startswith(begin) and line.endswith(end), line)
            return line[len(begin):-len(end)]

        self.program(checker, "\0 of another machine")
        self.assertEqual(last_line(), "Exec format error")
        checker.chmod(0o644)
        self.assertEqual(last_line(), "its mode does not allow it")
        checker.unlink()
        self.assertEqual(last_line(), "there is no such file")

    def test_a_kernel_that_does_not_compile_ends_a_rebuild_with_the_words_of_nvcc(self):
        package = self.folder / "package"
        (package / "manifest.json").write_text(json.dumps(
            {"tree": "", "words": "", "kernels": ["kernels/a.cu"], "nvcc": ["-O3"]}))
        self.program(self.tools / "nvcc", f"#!{sys.executable}\nimport sys\n"
                     "sys.exit('a.cu(1): error: no such word')\n")
        self.assertEqual(self.refused(1, "rebuild", "--package", package), [
            "a.cu(1): error: no such word",
            f"error: nvcc ended with exit status 1. {package} is as it was."])
        self.assertEqual((package / "gpu_checker").read_text(), CHECKER)

    def test_a_run_of_nothing_does_not_pass(self):
        nothing = "==> nothing was run, so nothing has passed"
        self.assertEqual(self.run_script("--simulate", "--stage", "times", "memcheck"), 1)
        self.assertEqual(self.said[-1], nothing)
        self.assertEqual(self.run_script("--stage", "nccl", plays={"nccl": "lacks"}), 1)
        self.assertEqual(self.said[-1], nothing)
        self.assertEqual(self.run_script("--stage", "twins", "memcheck"), 0)
        self.assertNotIn(nothing, self.said)

    def test_a_seed_is_one_that_the_checker_takes(self):
        for seed in ("-1", str(2**64), "1.5", "one", ""):
            self.assertEqual(
                self.run_refused(2, None, "--seed", seed)[-1],
                "gpu_check run: error: argument --seed: "
                f"'{seed}' is no number from 0 to 18446744073709551615.")
        for seed in ("0", str(2**64 - 1)):
            self.assertEqual(self.run_script("--stage", "twins", "--seed", seed), 0)
            self.assertEqual(self.calls()[-1][0], ["twins", "--seed", seed])

    def test_what_it_says_of_each_stage(self):
        flags = ("--stage", "twins", "ops", "memcheck")
        self.run_script(*flags, plays={"ops": "differs"})
        self.assertEqual(self.said[1::2], [
            "==> twins: passed", "==> ops: failed: different: a | b",
            "==> memcheck: not run: compute-sanitizer is not on this machine"])
        self.run_script("--simulate", *flags, plays={"ops": "differs"})
        self.assertEqual(self.said[1::2], [
            "==> twins, simulated: passed", "==> ops, simulated: failed: different: a | b",
            "==> memcheck: not run: compute-sanitizer checks GPUs only"])


if __name__ == "__main__":
    unittest.main()
