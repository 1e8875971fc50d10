"""scripts/time_build fails if a build takes too long."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "time_build"


class TimeBuild(unittest.TestCase):
    def run_script(self, *args):
        """With a cmake and a ninja that build nothing, and a clock that runs 601 s in between."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"cmake": "", "ninja": f"touch {folder}/built",
                               "date": f"if [ -e {folder}/built ]; then echo 1601; else echo 1000; fi"}.items():
                program = pathlib.Path(folder) / name
                program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
                program.chmod(0o755)
            env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            return subprocess.run([SCRIPT, *args], env=env, capture_output=True, text=True, check=False)

    def test_a_build_within_the_limit_passes(self):
        run = self.run_script("--limit", "601", "folder")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("clean build: 601 s on ", run.stdout)

    def test_the_limit_is_600_s(self):
        run = self.run_script("folder")
        self.assertEqual(run.returncode, 1)
        self.assertIn("clean build: 601 s on ", run.stdout)
        self.assertEqual(run.stderr, "clean build: more than 600 s\n")

    def test_the_help_names_the_limit(self):
        for args in ((), ("--help",)):
            run = self.run_script(*args)
            self.assertEqual(run.returncode, 0)
            self.assertIn("[--limit SECONDS] FOLDER", run.stdout)
            self.assertIn("600 s", run.stdout)
        self.assertEqual(self.run_script("--unknown").returncode, 2)


if __name__ == "__main__":
    unittest.main()
