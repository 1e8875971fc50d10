"""The flags of the preset odr find a type that two sources define differently."""

import json
import pathlib
import shlex
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def flags():
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
    odr = next(p for p in presets["configurePresets"] if p["name"] == "odr")["cacheVariables"]
    assert odr["CMAKE_INTERPROCEDURAL_OPTIMIZATION"] == "ON"  # which cmake makes -flto=auto
    return ["-flto=auto", *shlex.split(odr["CMAKE_CXX_FLAGS_RELEASE"])]


def link(member):
    """Links two sources that each define the type Step, one of them with this member."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        one, two = folder / "one.cc", folder / "two.cc"
        one.write_text("struct Step { virtual int Run() { return rows; } int rows = 1; };\n"
                       "Step* Other();\nint main() { return Step().Run() + Other()->Run(); }\n",
                       encoding="utf-8")
        two.write_text(f"struct Step {{ virtual int Run() {{ return rows; }} {member} rows = 1; }};\n"
                       "Step* Other() { static Step step; return &step; }\n", encoding="utf-8")
        return subprocess.run(["c++", "-std=c++20", *flags(), str(one), str(two), "-o",
                               str(folder / "program")], capture_output=True, text=True, check=False)


class Odr(unittest.TestCase):
    def test_a_planted_violation_is_an_error(self):
        done = link("short")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("[-Werror=odr]", done.stderr)

    def test_equal_definitions_are_none(self):
        self.assertEqual(link("int").returncode, 0)


if __name__ == "__main__":
    unittest.main()
