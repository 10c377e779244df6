#!/usr/bin/env python3
"""scripts/run_tests.py: what a test depends on, what is left out, what runs first, and how results are read.

How it runs programs is in tests/support/test_suites.py.
"""

import functools
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as tree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from testing import catalog, choose, inputs, results, run  # noqa: E402


def test_of(name, *labels, command=("true",)):
    return catalog.Test(1, name, command, {}, frozenset(labels))


class Levels(unittest.TestCase):
    def test_labels_say_which_command_runs_a_test(self):
        tests = [test_of("unit"), test_of("rest", "rest"), test_of("file.first", "first"), test_of("suite.ray", "suites"),
                 test_of("slurm", "engines"), test_of("long", "endurance")]

        def names(level):
            return [test.name for test in catalog.of_level(tests, level)]

        self.assertEqual(names("test"), ["unit", "file.first"])
        self.assertEqual(names("all"), ["unit", "rest", "suite.ray"])
        self.assertEqual(names("engines"), ["slurm"])
        self.assertEqual(names("endurance"), ["long"])

    def test_every_line_of_make_test_names_cases_that_there_are(self):
        text_of = functools.cache(lambda file: "".join(path.read_text() for path in inputs.modules_of(file)))
        for line in (ROOT / "tests/make_test.txt").read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            folder, topic, *case = line.split(".")
            file = ROOT / "tests" / folder / f"test_{topic}.py"
            self.assertTrue(file.exists(), line)
            text = text_of(file)
            self.assertTrue(not case or re.search(rf"\bclass {case[0]}\b", text), line)
            self.assertTrue(len(case) < 2 or case[1] in self.names_of_methods(text) or self.is_made(case[1], text), line)

    def test_every_fault_of_the_mutants_changes_its_file(self):
        for line in (catalog.ROOT / "scripts" / "mutants.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                file, change, _ = line.split("\t")
                before = (catalog.ROOT / file).read_text()
                after = subprocess.run(["sed", "-E", change], input=before, capture_output=True, text=True, check=True).stdout
                self.assertNotEqual(before, after, line)

    def names_of_methods(self, text):
        return re.findall(r"\bdef (test_\w+)\b", text)

    def is_made(self, name, text):
        """Whether it is of a table, whose rows become methods by setattr(CLASS, f"test_…{…}", …)."""
        made = re.findall(r'\bsetattr\(\w+, f"(test_[^"]+)"', text)
        return any(re.fullmatch(re.sub(r"\{\w[^}]*\}", r"\\w+", template), name) for template in made)


class WhatATestDependsOn(unittest.TestCase):
    def names(self, file):
        return {str(path.relative_to(ROOT)) for path in inputs.modules_of(ROOT / file)}

    def test_modules_are_followed_through_imports(self):
        found = self.names("tests/python/test_zero.py")
        self.assertIn("tests/python/ranks.py", found)
        self.assertIn("python/bimetal/zero/sharding.py", found)
        self.assertFalse({name for name in found if name.startswith(("python/bimetal/tune", "python/bimetal/horovod"))})

    def test_a_job_of_the_program_needs_no_package(self):
        found = self.names("tests/fault/test_mesh.py")
        self.assertIn("tests/fault/harness.py", found)
        self.assertFalse({name for name in found if name.startswith("python/")})

    def test_a_folder_that_is_named_counts_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "one.py"
            file.write_text('open("examples/fashion_mnist.toml")')
            self.assertIn(ROOT / "examples/fashion_mnist.toml", inputs.folders_named(file))
            other = pathlib.Path(folder) / "other.py"
            other.write_text("examples = 1")
            self.assertEqual(inputs.folders_named(other), frozenset())


class WhatRuns(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = pathlib.Path(scratch.name) / "tests.json"
        self.known = results.Results(self.path)

    def test_only_what_passed_with_the_same_inputs_holds(self):
        self.known.add("good", True, 1.0, "abc")
        self.known.add("bad", False, 1.0, "abc")
        self.known.add("partly skipped", True, 1.0, "")
        self.known.save()
        again = results.Results(self.path)
        self.assertTrue(again.holds("good", "abc"))
        self.assertFalse(again.holds("good", "abd"))
        self.assertFalse(again.holds("bad", "abc"))
        self.assertFalse(again.holds("partly skipped", ""))
        self.assertFalse(again.holds("never seen", "abc"))

    def test_a_damaged_file_is_no_obstacle(self):
        self.path.write_text("{")
        self.assertEqual(results.Results(self.path).tests, {})

    def test_failures_come_first_then_what_is_new_then_the_oldest(self):
        for name, passed, when in (("new", True, "2026-03-02"), ("old", True, "2026-03-01"), ("failed", False, "2026-03-02")):
            self.known.tests[name] = {"passed": passed, "when": when, "seconds": 1}
        tests = [test_of(name) for name in ("new", "old", "failed", "never")]
        self.assertEqual([test.name for test in choose.by_age(tests, self.known)], ["failed", "never", "old", "new"])

    def test_what_takes_too_long_leaves_room_for_the_next(self):
        for name, seconds in (("short", 10), ("long", 1000), ("other", 10)):
            self.known.add(name, True, seconds, "")
        fitting = choose.that_fit([test_of("long"), test_of("short"), test_of("other")], self.known, 30)
        self.assertEqual([test.name for test in fitting], ["short", "other"])


class Outcomes(unittest.TestCase):
    def read(self, said, status="run"):
        element = tree.Element("testcase", name="some", status=status, time="1.5")
        tree.SubElement(element, "system-out").text = said
        outcome = run.read_outcome(element)
        return outcome.passed, outcome.failed, outcome.skipped

    def test_each_kind_of_closing_line(self):
        self.assertEqual(self.read("x\ncases: 3 passed, 0 failed, 1 skipped\n"), (3, 0, 1))
        self.assertEqual(self.read("tests on Ray: 61 passed, 2 failed\n", "fail"), (61, 2, 0))
        self.assertEqual(self.read("\nRan 7 tests in 3.1s\n\nOK (skipped=2)\n"), (5, 0, 2))
        self.assertEqual(self.read("\nRan 7 tests in 3.1s\n\nFAILED (failures=1, errors=1)\n", "fail"), (5, 2, 0))
        self.assertEqual(self.read("Ran 1 test in 0.1s\n\nOK\n"), (1, 0, 0))

    def test_what_does_not_count_is_one(self):
        self.assertEqual(self.read("fine"), (1, 0, 0))
        self.assertEqual(self.read("no", "fail"), (0, 1, 0))
        self.assertEqual(self.read("", "notrun"), (0, 0, 1))

    def test_one_that_fails_after_its_last_line_has_failed(self):
        self.assertEqual(self.read("cases: 3 passed, 0 failed, 0 skipped\n", "fail"), (3, 1, 0))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--verbose"])
