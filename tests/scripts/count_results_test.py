"""The counter of test results never calls a crash a success."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import count_results  # noqa: E402

GTEST_GOOD = '<testsuites><testsuite><testcase name="a" status="run"/>' \
             '<testcase name="b" status="run"/></testsuite></testsuites>'
GTEST_BAD = '<testsuites><testsuite><testcase name="a" status="run"/>' \
            '<testcase name="b" status="run"><failure/></testcase></testsuite></testsuites>'
GTEST_SKIPPED = '<testsuites><testsuite><testcase name="a"><skipped/></testcase></testsuite></testsuites>'


def ctest(**results):
    cases = "".join(f'<testcase name="{name}" status="{status}">'
                    + ("<failure/>" if status == "fail" else "") + "</testcase>"
                    for name, status in results.items())
    return f"<testsuite>{cases}</testsuite>"


class CountResults(unittest.TestCase):
    def of(self, work, files):
        """What `work` makes of a folder with these files."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (pathlib.Path(folder) / f"{name}.xml").write_text(text)
            return work(pathlib.Path(folder))

    def count(self, **files):
        return self.of(count_results.count, files)

    def failures(self, **files):
        return self.of(count_results.failures, files)

    def test_cases_are_counted(self):
        self.assertEqual(self.count(ctest=ctest(one="run"), one=GTEST_GOOD), (2, 0))

    def test_failures_are_counted_once(self):
        self.assertEqual(self.count(ctest=ctest(one="fail"), one=GTEST_BAD), (1, 1))

    def test_a_crash_without_results_is_a_failure(self):
        self.assertEqual(self.count(ctest=ctest(one="fail")), (0, 1))

    def test_a_crash_after_results_is_a_failure(self):
        self.assertEqual(self.count(ctest=ctest(one="fail"), one=GTEST_GOOD), (2, 1))

    def test_a_result_cut_off_is_a_failure(self):
        self.assertEqual(self.count(ctest=ctest(one="fail"), one=GTEST_GOOD[:40]), (0, 1))

    def test_a_program_that_is_no_gtest_counts_as_one(self):
        self.assertEqual(self.count(ctest=ctest(script="run")), (1, 0))

    def test_skipped_cases_are_not_passed(self):
        self.assertEqual(self.count(pytest=GTEST_SKIPPED), (0, 0))

    def test_nothing_at_all_is_a_failure(self):
        self.assertEqual(self.count(), (0, 1))

    def test_what_failed_is_told_once_with_its_message(self):
        bad = '<testsuites><testsuite><testcase classname="S" name="a"/><testcase classname="S" name="b">' \
              '<failure message="1 is not 2&#10;here"/></testcase></testsuite></testsuites>'
        self.assertEqual(self.failures(ctest=ctest(one="fail"), one=bad),
                         ["FAILED: S.b", "    1 is not 2", "    here"])

    def test_a_crash_is_told_with_the_end_of_its_output(self):
        crashed = '<testsuite><testcase classname="one" name="one" status="fail"><failure message=""/>' \
                  '<system-out>begin\nSegmentation fault</system-out></testcase></testsuite>'
        self.assertEqual(self.failures(ctest=crashed, one=GTEST_GOOD),
                         ["FAILED: one.one", "    begin", "    Segmentation fault"])

    def test_many_failures_are_told_in_bounded_text(self):
        case = '<testcase classname="S" name="b"><failure message="' + "x" * 999 + "&#10;" * 99 + '"/></testcase>'
        told = self.failures(pytest=f"<testsuites><testsuite>{case * 30}</testsuite></testsuites>")
        self.assertEqual(told[-1], "... and 10 more")
        self.assertLessEqual(len(told), 20 * 13 + 1)
        self.assertLessEqual(max(map(len, told)), 204)

    def passed(self, log, **files):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file, text in files.items():
                (folder / f"{file}.xml").write_text(text)
            (folder / "Testing" / "Temporary").mkdir(parents=True)
            path = folder / "Testing" / "Temporary" / "LastTest.log.tmp"
            path.write_text(log)
            first = count_results.passed_binaries(folder, folder)
            # The next run has a log of its own.
            path.write_text("")
            self.assertEqual(count_results.passed_binaries(folder, folder), first)
            return first

    def test_only_binaries_that_passed_to_their_end_are_left_out(self):
        log = "".join(f"{i}/9 Test: {name}\nCommand: x\n{end}\n" for i, (name, end) in enumerate((
            ("good", "Test Passed."), ("bad", "Test Failed."), ("leaks", "Test Failed."),
            ("cut_off", "Test Passed."), ("running", ""))))
        self.assertEqual(self.passed(log, good=GTEST_GOOD, bad=GTEST_BAD, leaks=GTEST_GOOD,
                                     cut_off=GTEST_GOOD[:40], running=GTEST_GOOD,
                                     unknown=GTEST_GOOD), ["good"])


if __name__ == "__main__":
    unittest.main()
