"""The comparison with llama.cpp computes its ratio from whole times, and says what is missed."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench_peer"

# Programs that print what the real ones do: tokens per second of prefill, decode and both.
OURS = "print('B=%s prefill {0:8.1f} tok/s, decode {1:8.1f} tok/s, both {2:8.1f} tok/s' % sys.argv[2])"
THEIRS = """print('main: warming up')
print('{{"pl": 1, "speed_pp": {0}, "t_tg": 1.0, "speed_tg": {1}, "t": 2.0, "speed": {2}}}')"""


class BenchPeer(unittest.TestCase):
    def compare(self, ours, theirs):
        with tempfile.TemporaryDirectory() as folder:
            programs = []
            for text, speeds in ((OURS, ours), (THEIRS, theirs)):
                program = pathlib.Path(folder) / f"program{len(programs)}"
                program.write_text(f"#!{sys.executable}\nimport sys\n{text.format(*speeds)}\n")
                program.chmod(0o755)
                programs.append(str(program))
            return subprocess.run(
                [sys.executable, SCRIPT, "--rounds", "1", "--threads", "2", "--ours", programs[0]],
                capture_output=True, text=True, stdin=subprocess.DEVNULL,
                env={**os.environ, "FLOTILLA_PEER_BIN": programs[1], "FLOTILLA_MODEL": "m.gguf"})

    def test_targets_reached(self):
        run = self.compare((1000, 400, 600), (300, 200, 250))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("| 1 | 1000 | 400 | 600 | 300 | 200 | 250 | 2.40 | 1.5 |", run.stdout)
        self.assertIn("| 8 | 1000 | 400 | 600 | 300 | 200 | 250 | 2.40 | – |", run.stdout)
        self.assertIn("All targets reached.", run.stdout)

    def test_a_missed_target_is_named(self):
        run = self.compare((2000, 300, 450), (300, 200, 250))
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("| 32 | 2000 | 300 | 450 | 300 | 200 | 250 | 1.80 | 2.0 |", run.stdout)
        self.assertIn("Targets missed here: batch 32: 1.80 of 2.0.", run.stdout)


if __name__ == "__main__":
    unittest.main()
