#!/usr/bin/env python3
"""How suites of GoogleTest's run under CTest, and how their cases are counted: test_main.cpp, cmake/TestSuites.cmake and
scripts/run_tests.py together, with the program whose path is the argument."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]


class Suites(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        self.describe()

    def describe(self, **changes: str) -> None:
        variables = {"name": "cases", "program": PROGRAM, "list": self.tree / "found.cmake", "label": "unit", "case_seconds": 2,
                     "together": "FALSE", "torch": "FALSE", **changes}
        (self.tree / "CTestTestfile.cmake").write_text("".join(
            f"set({key} [==[{value}]==])\n" for key, value in variables.items())
            + f"include([==[{ROOT / 'cmake/TestSuites.cmake'}]==])\n")

    def run_suites(self, pattern: str, *options: str) -> str:
        """The output, with a line "counted P F S" at its end."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CTEST_")}
        said = subprocess.run([sys.executable, ROOT / "scripts/run_tests.py", "all", self.tree, "--only", pattern, *(options or ["--once"])],
                              text=True, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**environment, "BIMETAL_TEST_CACHE": str(self.tree / "cache"), "BIMETAL_COUNTS": ""}).stdout
        counts = re.search(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\Z", said.strip(), re.M)
        return f"{said}\ncounted {' '.join(number or '0' for number in counts.groups())}\n" if counts else said

    def suite_alone(self, suite: str, **variables: str) -> subprocess.Popen:
        process = subprocess.Popen([PROGRAM], cwd=self.tree, text=True, stdout=subprocess.PIPE, start_new_session=True,
                                   env={**os.environ, "BIMETAL_TEST_SUITE": suite, **variables})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_each_case_is_counted_and_sees_nothing_of_the_others(self):
        self.assertIn("counted 3 0 0", self.run_suites("^cases.Good$"))
        # More output than CTest keeps of what passes.
        self.assertIn("counted 30 0 0", self.run_suites("^cases.Many/Counted$"))

    def test_one_that_crashes_or_hangs_costs_no_other(self):
        said = self.run_suites("^cases.Mixed$")
        self.assertIn("counted 1 4 1", said)
        self.assertIn("failed: cases.Mixed Mixed.Fails Mixed.Crashes Mixed.Hangs Mixed.Leaves", said)
        for part in ("as it is to", "nothing to do here", "Mixed.Crashes: FAILED: ended by signal 9", "Mixed.Hangs: FAILED: out of time",
                     "Mixed.Leaves: FAILED: its process ended with 0"):
            self.assertIn(part, said)

    def test_what_comes_after_a_case_counts_where_it_is_run(self):
        said = self.run_suites("^cases.AtExit$")
        self.assertIn("counted 1 2 0", said)
        for part in ("AtExit.Crashes: FAILED: ended by signal 9", "AtExit.Hangs: FAILED: out of time"):
            self.assertIn(part, said)
        # Beside libtorch it is run for the last case alone.
        self.describe(torch="TRUE")
        self.assertIn("counted 3 0 0", self.run_suites("^cases.AtExit$"))

    def test_nothing_outlives_a_case_or_the_program(self):
        # communicate() waits for processes that still hold the pipe.
        case = self.suite_alone("Long", BIMETAL_CASE_SECONDS="1")
        self.assertIn("cases: 1 passed, 1 failed, 0 skipped", case.communicate(timeout=60)[0])
        program = self.suite_alone("Long", BIMETAL_CASES="together", BIMETAL_CASE_SECONDS="90")
        self.assertIn("Long.Hangs", program.stdout.readline())
        program.kill()
        program.communicate(timeout=60)

    def test_cases_may_share_a_process(self):
        # Entries that were listed before do not stay.
        self.assertIn("counted 33 0 0", self.run_suites("^cases.(Good|Many/Counted)$"))
        self.describe(together="TRUE")
        said = self.run_suites("^cases.(Good|Many/Counted)$")
        self.assertIn("counted 32 1 0", said)
        self.assertIn("Good.FindsNothing: FAILED", said)
        # One that ends the process ends the suite, whose others count for nothing; it is the last that was named.
        said = self.run_suites("^cases.Mixed$")
        self.assertIn("counted 0 1 0", said)
        self.assertIn("Mixed: FAILED: ended by signal 9", said)
        said = self.run_suites("^cases.Early$")
        self.assertIn("counted 0 1 0", said)
        self.assertRegex(said, r"Early\.Leaves\s+(\d+: )?Early: FAILED: its process ended with 0")

    def test_what_passes_at_the_second_try_is_counted_once(self):
        said = self.run_suites("^cases.(Good|Once)$", "--unchanged", "run")
        self.assertIn("passed at the second try, alone: cases.Once", said)
        self.assertIn("counted 4 0 0", said)
        self.assertIn("cases.Once", self.run_suites(".", "--flaky"))

    def test_what_skips_at_the_second_try_stays_failed(self):
        said = self.run_suites("^cases.(Good|Skipping)$", "--unchanged", "run")
        self.assertIn("skips now what had failed", said)
        self.assertIn("counted 3 1 0", said)

    def test_a_suite_that_broke_off_counts_its_cases_at_the_second_try(self):
        self.describe(together="TRUE")
        self.assertIn("counted 2 0 1", self.run_suites("^cases.Breaking$", "--unchanged", "run"))

    def test_a_program_that_is_not_built_fails(self):
        self.describe(program=PROGRAM + "-gone")
        self.assertIn("counted 0 1 0", self.run_suites("."))

    def test_all_suites_are_listed_whatever_the_filter(self):
        os.environ["GTEST_FILTER"] = "Early.*"
        self.addCleanup(os.environ.pop, "GTEST_FILTER")
        self.assertIn("counted 3 0 0", self.run_suites("^cases.Good$"))

    def test_a_program_without_tests_is_an_error(self):
        self.describe(program="/bin/true")
        self.assertIn("lists no tests", self.run_suites("."))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop())
    unittest.main(argv=[sys.argv[0], "--verbose"])
