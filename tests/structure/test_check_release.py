#!/usr/bin/env python3
"""scripts/check_release.py finds what it is there for, and nothing in these sources."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts" / "check_release.py"


def check(*arguments):
    return subprocess.run([sys.executable, CHECK, *arguments], capture_output=True, text=True, timeout=60)


class Release(unittest.TestCase):
    def test_these_sources(self):
        done = check()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"^\d+\.\d+\.\d+\n$")

    def test_what_is_wrong_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "CMakeLists.txt").write_text("project(bimetal VERSION 1.2.3 LANGUAGES CXX)\n")
            self.assertIn("CHANGELOG.md", check(folder).stdout)
            (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3\n")
            (root / "pyproject.toml").write_text('# as in 1.2.3\nneeds = "11.2.3"\n')
            self.assertEqual(check(folder).stdout, "1.2.3\n")
            (root / "pyproject.toml").write_text('version = "1.2.3"\n')
            self.assertIn("pyproject.toml:1: repeats", check(folder).stdout)
            (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.4\n\n## 1.2.3\n")
            done = check(folder)
            self.assertIn("first heading is ['1.2.4']", done.stdout)
            self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
