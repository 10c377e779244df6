#!/usr/bin/env python3
"""scripts/stamped.sh: a suite is left out only while what it depends on is what it was when the suite passed whole."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
COUNTS = 'echo "{}" >>"$BIMETAL_COUNTS"; echo ran'


class Stamps(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        for folder in ("scripts", ".ci/inputs", "src"):
            (self.tree / folder).mkdir(parents=True)
        shutil.copy(ROOT / "scripts/stamped.sh", self.tree / "scripts")
        (self.tree / ".ci/inputs/some").write_text("# what counts\nsrc\n")
        (self.tree / "src/one.cpp").write_text("1\n")
        (self.tree / "other").write_text("1\n")
        for command in ("init -q", "add -A"):
            subprocess.run(["git", *command.split()], cwd=self.tree, check=True)

    def run_suite(self, counted="3 0 0", command=None, **environment: str) -> tuple[bool, str, str]:
        """Whether the suite's command ran, what was printed, and the counts that it left."""
        counts = self.tree / "counts"
        counts.write_text("")
        done = subprocess.run(["scripts/stamped.sh", "some", "sh", "-c", command or COUNTS.format(counted)], text=True,
                              cwd=self.tree, capture_output=True, timeout=60,
                              env={**os.environ, "BIMETAL_COUNTS": str(counts), "STAMPS": "", **environment})
        self.status = done.returncode
        return "ran" in done.stdout.split("\n"), done.stdout + done.stderr, counts.read_text()

    def test_one_that_passed_is_left_out_until_an_input_changes(self):
        self.assertTrue(self.run_suite()[0])
        ran, said, counts = self.run_suite(STAMPS="use")
        self.assertFalse(ran, said)
        self.assertIn("left out: some", said)
        self.assertEqual(counts, "0 0 1\n")
        (self.tree / "other").write_text("2\n")
        self.assertFalse(self.run_suite(STAMPS="use")[0])
        self.assertTrue(self.run_suite()[0], "without STAMPS=use it runs, whatever its stamp says")
        for change in ("src/one.cpp", "src/new.cpp", ".ci/inputs/some", "scripts/stamped.sh"):
            with self.subTest(change):
                with open(self.tree / change, "a") as file:
                    file.write("# 2\n")
                ran, said, counts = self.run_suite(STAMPS="use")
                self.assertTrue(ran, said)
                self.assertEqual(counts, "3 0 0\n")

    def test_what_did_not_pass_whole_gets_no_stamp(self):
        for counted, ending in (("3 1 0", "; exit 1"), ("3 0 1", ""), ("0 0 0", ""), ("3 0 0", "; exit 1"),
                                ("3 0 0", "; echo 2 >>src/one.cpp")):
            with self.subTest(counted + ending):
                self.run_suite(command=COUNTS.format(counted) + ending)
                self.assertEqual(self.status, "exit 1" in ending)
                self.assertTrue(self.run_suite(counted="1 1 0", STAMPS="use")[0])

    def test_an_input_that_is_gone_is_an_error(self):
        (self.tree / ".ci/inputs/some").write_text("src\nmoved/away\n")
        ran, said, _ = self.run_suite()
        self.assertFalse(ran)
        self.assertNotEqual(self.status, 0)
        self.assertIn("moved/away", said)

    def test_every_list_of_this_tree_names_what_is_there(self):
        if not (ROOT / ".git").exists():
            self.skipTest("sources without their history")
        for suite in sorted((ROOT / ".ci/inputs").iterdir()):
            for spec in suite.read_text().splitlines():
                if spec and not spec.startswith("#"):
                    found = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", spec],
                                           cwd=ROOT, capture_output=True, text=True, check=True).stdout
                    self.assertTrue(found, f"{suite.name} names {spec}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
