"""The comparison with another commit takes the fastest rounds of each, and fails if one is slower."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench_commit"

# A program that prints the next of its speeds, as decode_benchmark does.
PROGRAM = """#!{python}
import pathlib
rounds = pathlib.Path({rounds!r})
number = len(rounds.read_text()) if rounds.exists() else 0
rounds.write_text("x" * (number + 1))
prefill, decode = {speeds}[number % len({speeds})]
print(f"B=1 prefill {{prefill:8.1f}} tok/s, decode {{decode:8.1f}} tok/s, both {{decode:8.1f}} tok/s")
"""


class BenchCommit(unittest.TestCase):
    def compare(self, ours, before):
        with tempfile.TemporaryDirectory() as folder:
            programs = []
            for name, speeds in (("ours", ours), ("before", before)):
                program = pathlib.Path(folder) / name
                program.write_text(PROGRAM.format(python=sys.executable, rounds=f"{program}.rounds",
                                                  speeds=speeds))
                program.chmod(0o755)
                programs.append(str(program))
            run = subprocess.run(
                [sys.executable, SCRIPT, "--rounds", "2", "--batches", "1", "--threads", "2", "--ours",
                 *programs], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                env={**os.environ, "FLOTILLA_MODEL": "m.gguf"})
            return run, pathlib.Path(f"{programs[0]}.rounds").stat().st_size

    def test_the_fastest_rounds_count(self):
        run, rounds = self.compare([(500, 100), (1000, 80)], [(900, 99), (400, 98)])
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("| 1 | 1000 | 900 | 1.11 | 100 | 99 | 1.01 |", run.stdout)
        self.assertIn("Nothing is below the least ratio.", run.stdout)
        self.assertEqual(rounds, 2)

    def test_what_is_slower_is_tried_again_and_named(self):
        run, rounds = self.compare([(1000, 90)], [(1000, 100)])
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("| 1 | 1000 | 1000 | 1.00 | 90 | 100 | 0.90 |", run.stdout)
        self.assertIn("Below the least ratio: decode at batch 1: 0.900 of 0.98.", run.stdout)
        self.assertEqual(rounds, 4)

    def test_a_slow_moment_is_forgiven(self):
        run, _ = self.compare([(1000, 90), (1000, 90), (1000, 100), (1000, 90)], [(1000, 100)])
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main()
