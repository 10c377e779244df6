"""The layer check must fail on each kind of offence that it claims to find."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).with_name("check_layers.py")


def check(files: dict[str, str]) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, "src", "bimetal", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)


GOOD = {"base/CMakeLists.txt": "", "base/a.cpp": "", "comm/CMakeLists.txt": "",
        "comm/b.cpp": '#include "bimetal/base/a.h"\n'}


class CheckLayers(unittest.TestCase):
    def test_accepts_a_tree_in_order(self):
        self.assertEqual(check(GOOD).returncode, 0)

    def test_refuses_an_include_that_points_up(self):
        result = check(GOOD | {"base/a.cpp": '#include "bimetal/comm/b.h"\n'})
        self.assertEqual(result.returncode, 1)
        self.assertIn("a.cpp:1: 'base' may not use 'comm'", result.stdout)

    def test_refuses_torch_in_the_core(self):
        result = check(GOOD | {"comm/b.cpp": "#include <torch/torch.h>\n"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("without libtorch", result.stdout)

    def test_refuses_unknown_and_empty_folders(self):
        result = check(GOOD | {"utils/c.cpp": "", "net/CMakeLists.txt": ""})
        self.assertEqual(result.returncode, 1)
        self.assertIn("not a layer", result.stdout)
        self.assertIn("without a source file", result.stdout)

    def test_refuses_a_file_that_outgrew_its_idea(self):
        self.assertEqual(check(GOOD | {"base/a.cpp": "//\n" * 500}).returncode, 1)


if __name__ == "__main__":
    unittest.main()
