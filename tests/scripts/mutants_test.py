"""Every mutant fits the sources as they are, and only a failed seed, a failed test or a
crash counts as seen."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    sys.modules[path.name] = module
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


mutants = load(ROOT / "scripts" / "mutants")


class Mutants(unittest.TestCase):
    def test_fit_the_sources(self):
        for mutant in mutants.MUTANTS:
            text = (ROOT / mutant.path).read_text(encoding="utf-8")
            self.assertNotEqual(mutants.mutate(mutant, text), text, mutant.name)

    def test_names_are_unique(self):
        names = [mutant.name for mutant in mutants.MUTANTS]
        self.assertEqual(len(names), len(set(names)))

    def test_text_that_is_gone_is_an_error(self):
        mutant = mutants.Mutant("m", "f", "old", "new")
        self.assertEqual(mutants.mutate(mutant, "an old text"), "an new text")
        for text in ("", "old old"):
            with self.assertRaises(mutants.Stale):
                mutants.mutate(mutant, text)

    def test_a_failed_seed_or_a_crash_is_seen(self):
        seed = "tick 7: invariant 1: references\nrepeat with: FLOTILLA_SIM_SEED=12 sim_test"
        self.assertEqual(mutants.judge(1, seed), "invariant 1: references (seed 12)")
        self.assertIn("crash", mutants.judge(-11, ""))

    def test_a_failed_unit_test_is_seen(self):
        self.assertEqual(mutants.judge_test(1, "[  FAILED  ] A.B (3 ms)"), "A.B")
        self.assertIsNone(mutants.judge_test(0, "[  PASSED  ] 2 tests."))
        with self.assertRaises(mutants.Stale):
            mutants.judge_test(0, "[==========] Running 0 tests from 0 test suites.")

    def test_a_failed_op_is_seen_with_its_case(self):
        output = ("repeat with: FLOTILLA_CASE=3 FLOTILLA_SCHEDULE=1 kernels_cuda_ops_test\n"
                  "[  FAILED  ] Ops/A.B/top_n, where GetParam() = top_n (3 ms)")
        self.assertEqual(mutants.judge_test(1, output), "Ops/A.B/top_n (case 3, schedule 1)")

    def test_the_path_says_which_program_must_fail(self):
        def made(path, tests=""):
            mutant = mutants.Mutant("m", path, "old", "new", tests)
            return mutant.program, mutant.filter

        self.assertEqual(made("kernels/cuda/norm.cu", "rms_norm"), ("kernels_cuda_ops_test", "*/rms_norm"))
        self.assertEqual(made("scheduler/core/a.cc", "A.*"), ("scheduler_test", "A.*"))
        self.assertEqual(made("worker/core/a.cc"), ("sim_test", mutants.SIMULATION))
        self.assertEqual(made("worker/core/a.cc", "Simulation.A"), ("sim_test", "Simulation.A"))
        self.assertEqual(made("worker/core/a.cc", "A.*"), ("worker_core_test", "A.*"))

    def test_what_seeds_did_not_meet_is_not_seen(self):
        self.assertIsNone(mutants.judge(0, ""))
        self.assertIsNone(mutants.judge(1, "Expected: (total.core.evictions) > (0u)"))


if __name__ == "__main__":
    unittest.main()
