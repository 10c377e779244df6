"""The report on a device, scripts/device_report.py, and bench/card.py with small sizes: that people without Bimetal's habits can run
them, and that what they tell is there. Both on the CPU, which stands for a device."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAILING = """
import unittest

class Some(unittest.TestCase):
    def test_right(self):
        pass

    def test_wrong(self):
        self.assertEqual(1, 2, "in {folder}")

    def test_broken(self):
        raise RuntimeError("not on this device")

unittest.main()
"""


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


device_report = loaded(ROOT / "scripts" / "device_report.py")


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_probes_are_compared_with_the_cpu(self):
        out = self.folder / "report.md"
        subprocess.run([sys.executable, ROOT / "scripts" / "device_report.py", "cpu", "--no-tests", "--out", out], check=True,
                       stdout=subprocess.DEVNULL)
        text = out.read_text()
        self.assertIn(f"torch: {torch.__version__}", text)
        for name in device_report.PROBES:
            self.assertIn(f"| {name} | ", text)
        self.assertIn("| fused AdamW | works, 0.0e+00 from the CPU |", text)
        self.assertIn("| page-locked memory | no: ", text)

    def test_what_differs_shows(self):
        def wrong(device):
            return torch.full((3,), 2.0 if device == "there" else 1.0)
        self.assertEqual(device_report.outcome(wrong, "there"), "works, 1.0e+00 from the CPU")

    def test_a_device_that_is_not_there(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "device_report.py", "xpu:7"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: torch cannot use xpu:7 here", done.stderr)

    def test_failed_tests_are_named_with_their_last_lines(self):
        file = self.folder / "failing.py"
        file.write_text(FAILING.format(folder=pathlib.Path.home() / "secret"))
        output = subprocess.run([sys.executable, file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        found = dict(device_report.failures(output))
        self.assertEqual(len(found), 2)
        titles = sorted(found)
        self.assertIn("ERROR: test_broken", titles[0])
        self.assertIn("RuntimeError: not on this device", found[titles[0]])
        self.assertIn("FAIL: test_wrong", titles[1])
        told = device_report.anonymous(found[titles[1]])
        self.assertIn("in ~/secret", told)
        self.assertNotIn(str(pathlib.Path.home()), told)


class Card(unittest.TestCase):
    def test_rows_are_measured(self):
        """Those in float32: bfloat16 takes some CPUs minutes."""
        with tempfile.TemporaryDirectory() as folder:
            figures = pathlib.Path(folder) / "figures.json"
            done = subprocess.run([sys.executable, ROOT / "bench" / "card.py", "--device", "cpu:threads=1", "--tiny", "--rounds", "1",
                                   "--steps", "2", "--no-compile", "--only", "float32", "--minutes", "20", "--json", figures],
                                  capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = json.loads(figures.read_text())
            self.assertEqual(len(rows), 2, done.stdout)
            for title, sides in rows.items():
                self.assertEqual(len(sides["bimetal"]), 1, title)
                self.assertGreater(sides["torch"][0], 0, title)


if __name__ == "__main__":
    unittest.main()
