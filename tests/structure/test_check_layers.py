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
            path = pathlib.Path(root, "python" if name.endswith(".py") else "src", "bimetal", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)


GOOD = {"base/CMakeLists.txt": "", "base/a.cpp": "", "net/CMakeLists.txt": "",
        "net/b.cpp": '#include "bimetal/base/a.h"\n'}


class CheckLayers(unittest.TestCase):
    def test_accepts_a_tree_in_order(self):
        self.assertEqual(check(GOOD).returncode, 0)

    def test_refuses_an_include_that_points_up(self):
        result = check(GOOD | {"base/a.cpp": '#include "bimetal/net/b.h"\n'})
        self.assertEqual(result.returncode, 1)
        self.assertIn("a.cpp:1: 'base' may not use 'net'", result.stdout)

    def test_refuses_torch_in_the_core(self):
        result = check(GOOD | {"net/b.cpp": "#include <torch/torch.h>\n"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("without libtorch", result.stdout)

    def test_refuses_unknown_and_empty_folders(self):
        result = check(GOOD | {"utils/c.cpp": "", "comm/CMakeLists.txt": ""})
        self.assertEqual(result.returncode, 1)
        self.assertIn("not a layer", result.stdout)
        self.assertIn("without a source file", result.stdout)

    def test_refuses_a_room_that_uses_what_lies_above_its_layer(self):
        result = check(GOOD | {"net/shm/c.cpp": '#include "bimetal/data/transfer/d.h"\n'})
        self.assertIn("c.cpp:1: 'net' may not use 'data/transfer'", result.stdout)

    def test_tells_a_layer_in_a_folder_from_the_layer_around_it(self):
        tree = GOOD | {"data/CMakeLists.txt": "", "data/a.cpp": '#include "bimetal/data/transfer/b.h"\n',
                       "data/transfer/CMakeLists.txt": "", "data/transfer/b.cpp": '#include "bimetal/data/a.h"\n'}
        self.assertEqual(check(tree).stdout.count("may not use"), 1)
        self.assertIn("'data' may not use 'data/transfer'", check(tree).stdout)

    def test_refuses_a_room_with_a_target_of_its_own(self):
        self.assertIn("a room of net", check(GOOD | {"net/shm/CMakeLists.txt": ""}).stdout)

    def test_refuses_a_room_of_small_files(self):
        room = GOOD | {"balance/CMakeLists.txt": "", "balance/a.cpp": "\n" * 60}
        self.assertEqual(check(room | {f"balance/{i}.cpp": "\n" * 60 for i in range(3)} | {"balance/b.h": ""}).stdout[:11],
                         "layers hold")
        result = check(room | {"balance/b.h": "\n" * 59})
        self.assertEqual(result.returncode, 1)
        self.assertIn("1 of 2 files have less than 60 lines", result.stdout)

    def test_refuses_a_folder_of_too_many_files(self):
        crowd = {f"net/shm/{i}.h": "" for i in range(41)}
        self.assertIn("41 files; give it rooms", check(GOOD | crowd).stdout)
        crowd.popitem()
        self.assertEqual(check(GOOD | crowd).returncode, 0)

    def test_refuses_a_file_that_outgrew_its_idea(self):
        self.assertEqual(check(GOOD | {"base/a.cpp": "//\n" * 500}).returncode, 1)

    def test_refuses_circles_in_python(self):
        late = "def f():\n    from bimetal.b.two import x\n"
        for files, circle in (({"a.py": "import bimetal.b\n", "b.py": "from bimetal import a\n"}, "bimetal.a → bimetal.b → bimetal.a"),
                              ({"a/one.py": late, "a/two.py": "", "b/one.py": "from bimetal.a import two\n", "b/two.py": ""}, "/a → "),
                              ({"__init__.py": "from bimetal import a\n", "a.py": "from bimetal import _C, x\n"}, "")):
            said = check(GOOD | files).stdout
            self.assertIn(circle, said)
            self.assertEqual("a circle of imports" in said, bool(circle), said)


if __name__ == "__main__":
    unittest.main()
