#!/usr/bin/env python3
""".ci/run: which suites it runs when much time has been spent, and with CI_ALL=1."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SUITES = re.findall(r"^(?:\w+=\w+ )?suite \d+ ([\w-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)


class CiRun(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for folder in (".ci", "scripts", "bin"):
            (self.tree / folder).mkdir()
        shutil.copy(ROOT / ".ci/run", self.tree / ".ci")
        for name, text in (("bin/make", 'echo "ran $1, stamps: ${STAMPS:-}"; echo "1 0 0" >>"$BIMETAL_COUNTS"'),
                           ("scripts/install_tensorflow.sh", "true")):
            (self.tree / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.tree / name).chmod(0o755)

    def run_ci(self, minutes: int, **environment: str) -> tuple[list[str], str]:
        """The suites that ran, where the machine has been at it for so long, and what was printed."""
        path = f"{self.tree / 'bin'}:{os.environ['PATH']}"
        said = subprocess.run([self.tree / ".ci/run"], capture_output=True, text=True, timeout=60, env={
            **os.environ, "PATH": path, "SECONDS": str(60 * minutes), "CI_ALL": "", "STAMPS": "", **environment})
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        return re.findall(r"^ran ((?!setup)[\w-]+), stamps", said.stdout, re.MULTILINE), said.stdout

    def test_a_slow_machine_leaves_suites_out_and_names_them(self):
        self.assertEqual(self.run_ci(0)[0], SUITES)
        ran, said = self.run_ci(50)
        self.assertEqual(ran, ["test"])
        for suite in SUITES[1:]:
            self.assertIn(f"skipped: make {suite},", said)

    def test_all_means_all(self):
        ran, said = self.run_ci(50, CI_ALL="1")
        self.assertEqual(ran, SUITES)
        self.assertNotIn("stamps: use", said)
        self.assertIn("0 failed, 0 skipped", said)

    def test_every_suite_with_a_list_of_its_own_is_run(self):
        """Those of `make test` itself apart, which it stamps."""
        with_a_list = {path.name for path in (ROOT / ".ci/inputs").iterdir()}
        self.assertLessEqual(with_a_list - {"test-backend", "test-jobs", "test-servers"}, set(SUITES))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
