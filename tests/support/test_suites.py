#!/usr/bin/env python3
"""How suites of GoogleTest's run under CTest, and how their cases are counted: test_main.cpp, cmake/TestSuites.cmake and
scripts/ctest_suite.sh together, with the program whose path is the argument."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
COUNTS = 'echo "counted $passed $failed $skipped"'


class Suites(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        variables = {"name": "cases", "program": PROGRAM, "list": self.tree / "found.cmake", "label": "unit", "case_seconds": 2,
                     "together": "FALSE"}
        (self.tree / "CTestTestfile.cmake").write_text("".join(
            f"set({key} [==[{value}]==])\n" for key, value in variables.items())
            + f"include([==[{ROOT / 'cmake/TestSuites.cmake'}]==])\n")

    def run_suites(self, pattern: str, then: str = COUNTS) -> str:
        script = f'. scripts/ctest_suite.sh; suite some "$0" -R "$1"; {then}'
        return subprocess.run(["bash", "-c", script, self.tree, pattern], cwd=ROOT, text=True, timeout=100,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={key: value for key, value in os.environ.items() if not key.startswith("CTEST_")}).stdout

    def test_each_case_is_counted_and_sees_nothing_of_the_others(self):
        self.assertIn("counted 3 0 0", self.run_suites("^cases.Good$"))
        # More output than CTest keeps of what passes.
        self.assertIn("counted 30 0 0", self.run_suites("^cases.Many/Counted$"))

    def test_one_that_crashes_or_hangs_costs_no_other(self):
        said = self.run_suites("^cases.Mixed$")
        self.assertIn("counted 1 3 1", said)
        self.assertIn("failed: cases.Mixed Mixed.Fails Mixed.Crashes Mixed.Hangs", said)
        for part in ("as it is to", "nothing to do here", "Mixed.Crashes: FAILED: ended by signal 9", "Mixed.Hangs: FAILED: out of time"):
            self.assertIn(part, said)

    def test_cases_may_share_a_process(self):
        (self.tree / "CTestTestfile.cmake").write_text(
            (self.tree / "CTestTestfile.cmake").read_text().replace("FALSE", "TRUE"))
        said = self.run_suites("^cases.(Good|Many/Counted)$")
        self.assertIn("counted 32 1 0", said)
        self.assertIn("Good.FindsNothing: FAILED", said)
        # One that ends the process ends the suite, whose others count for nothing; it is the last that was named.
        self.assertIn("counted 0 1 0", self.run_suites("^cases.Mixed$"))

    def test_what_passes_at_the_second_try_is_counted_once(self):
        said = self.run_suites("^cases.(Good|Once)$", f"{COUNTS}; rerun_failed \"$0\" 0; {COUNTS}")
        self.assertIn("counted 3 1 0", said)
        self.assertIn("passed at the second try, alone: 1 of 1", said)
        self.assertIn("counted 4 0 0", said)

    def test_a_program_that_is_not_built_fails(self):
        (self.tree / "CTestTestfile.cmake").write_text(
            (self.tree / "CTestTestfile.cmake").read_text().replace(PROGRAM, PROGRAM + "-gone"))
        self.assertIn("counted 0 1 0", self.run_suites("."))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop())
    unittest.main(argv=[sys.argv[0], "--verbose"])
