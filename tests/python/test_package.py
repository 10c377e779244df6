"""The package as a package: versions, stubs, what is exported."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import programs
import torch
import what_runs

import bimetal
from bimetal import _build, _C, _torch_check

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "cmake"), str(ROOT / "scripts")]
import torch_tag  # noqa: E402


class Package(unittest.TestCase):
    def test_a_wheels_version_names_the_torch(self):
        series = _torch_check.series(_build.TORCH)
        self.assertEqual(torch_tag.dynamic_metadata("version"), f"{bimetal.__version__}+torch{series}")
        self.assertIn(f"torch=={series}.*", torch_tag.dynamic_metadata("dependencies"))

    def test_the_stubs_name_what_the_torch_library_has(self):
        stubs = ast.parse((ROOT / "python" / "bimetal" / "_C.pyi").read_text())
        for thing in stubs.body:
            if isinstance(thing, (ast.FunctionDef, ast.ClassDef)):
                self.assertTrue(hasattr(_C, thing.name), thing.name)
            if isinstance(thing, ast.ClassDef):
                for member in thing.body:
                    if isinstance(member, ast.FunctionDef):
                        self.assertTrue(hasattr(getattr(_C, thing.name), member.name), f"{thing.name}.{member.name}")
        named = {thing.name for thing in stubs.body if isinstance(thing, (ast.FunctionDef, ast.ClassDef))}
        self.assertEqual({name for name in dir(_C) if not name.startswith("_")}, named)
        for kind in (thing for thing in stubs.body if isinstance(thing, ast.ClassDef)):
            fields = {thing.target.id for thing in kind.body if isinstance(thing, ast.AnnAssign)}
            functions = {thing.name for thing in kind.body if isinstance(thing, ast.FunctionDef)}
            members = {name for name in dir(getattr(_C, kind.name)) if not name.startswith("_")}
            self.assertEqual(members, (fields | functions) - {"__init__"})

    def test_what_goes_into_the_torch_library_and_back_stays_what_it_is(self):
        cuts = _C.TensorCuts([("weight", torch.zeros(4, 2)), ("bias", torch.zeros(4))], [("weight", 0, 1, 1)], [1, 1])
        whole = torch.ones(4, 2, requires_grad=True)
        self.assertIs(cuts.part("bias", whole, 1), whole)
        cuts.part("weight", whole * 3, 1).sum().backward()
        self.assertEqual(whole.grad.tolist(), [[0, 0], [0, 0], [3, 3], [3, 3]])
        before = sys.getrefcount(whole)
        for _ in range(1000):
            cuts.part("bias", whole, 0)
        self.assertEqual(sys.getrefcount(whole), before)
        self.assertEqual(cuts.places("weight", 1), (0, [(2, 2)]))
        for wrong in (lambda: cuts.part("bias", whole.untyped_storage(), 0), lambda: cuts.part("bias", None, 0),
                      lambda: cuts.part("bias", whole), lambda: cuts.part(b"bias", whole, 0), lambda: _C.whole_parts("3", [1.0]),
                      lambda: _C.whole_parts(3, 1.0)):
            self.assertRaises(TypeError, wrong)
        with self.assertRaises(bimetal.Error) as raised:
            _C.whole_parts(1, [1.0, 1.0])
        self.assertEqual(raised.exception.code, "invalid_argument")

    def test_torch_knows_the_backend_where_the_package_is_installed(self):
        """By the entry point that pip writes down, without `import bimetal`; others do not pay for it."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.pathsep.join([programs.install_entry_point(folder), os.environ["PYTHONPATH"]])
            for script in ("import sys, torch; assert 'bimetal' not in sys.modules and 'bimetal._C' not in sys.modules",
                           "import torch, torch.distributed as dist; dist.init_process_group('bimetal', rank=0, "
                           "world_size=1, store=dist.HashStore()); t = torch.ones(2); dist.all_reduce(t); "
                           "import bimetal; assert bimetal.transport(); dist.destroy_process_group()"):
                subprocess.run([sys.executable, "-c", script], check=True, timeout=120,
                               env={**os.environ, "PYTHONPATH": path})

    def test_torch_knows_the_backend_from_the_build_folder(self):
        build = os.path.dirname(os.path.dirname(bimetal.__file__))
        subprocess.run([sys.executable, "-c", "import torch.distributed as d; assert 'bimetal' in d.Backend.backend_list"], check=True,
                       timeout=120, env={**os.environ, "PYTHONPATH": build})

    def test_typed_and_documented(self):
        self.assertTrue((pathlib.Path(bimetal.__file__).parent / "py.typed").exists())
        for name in bimetal.__all__:
            self.assertTrue(inspect.getdoc(getattr(bimetal, name)), f"bimetal.{name} has no docstring")


@unittest.skipIf(sys.version_info < (3, 11), "scripts/wheel_file.py reads TOML by the library of Python 3.11")
class Wheel(unittest.TestCase):
    """A wheel without the torch library, unpacked, beside torch alone: whatever else this machine has installed makes no difference."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="bimetal-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.places = what_runs.Places(pathlib.Path(bimetal.__file__).parent, os.environ["BIMETAL"], folder.name)

    def test_its_core_is_its_own(self):
        wheel = self.places.package["wheel"]
        script = "import bimetal, bimetal.command.__main__, bimetal.hf; print(bimetal.__file__, bimetal.library.interface.PATH)"
        said = self.places.start("wheel", "-c", script)
        self.assertEqual(said.stdout.split(), [f"{wheel}/bimetal/{name}" for name in ("__init__.py", self.places.library)], said.stderr)
        said = self.places.start("wheel", "-m", "bimetal.program")
        self.assertIn("a task written in Python needs bimetal's torch library: it is not installed here", said.stderr)
        self.assertEqual(said.returncode, 3)

    def test_every_module_can_be_imported_or_says_what_to_install(self):
        found = self.places.modules()
        for name, said in found.items():
            if name.startswith("bimetal.tune.") and "No module named 'optuna'" in said:
                continue  # the command has asked for it before
            self.assertTrue(name.startswith(("bimetal.horovod.", "bimetal.lightning", "bimetal.pool.on_ray", "bimetal.ray")), (name, said))
            self.assertRegex(said, r"^ImportError: bimetal\.\S+ needs .*: pip install", name)

    def test_what_runs_where_is_as_the_docs_have_it(self):
        self.maxDiff = None
        self.assertEqual(what_runs.tables(self.places), what_runs.on_page(), "if that is as it should be: tests/python/what_runs.py --write")

    def test_examples_are_listed_and_copied(self):
        def examples(*arguments):
            return self.places.start("wheel", "-m", "bimetal.examples", *arguments)
        listed = examples().stdout
        self.assertRegex(listed, r"python/ddp_balanced.py +A CNN on Fashion-MNIST")
        self.assertEqual(examples("textbook", "own_model.toml", "--to", "mine").returncode, 0)
        for name in ("own_model.toml", "textbook/amp.py"):
            self.assertEqual(pathlib.Path(self.folder, "mine", name).read_bytes(), (ROOT / "examples" / name).read_bytes())
        self.assertIn("is there already", examples("own_model.toml", "--to", "mine").stderr)
        self.assertIn("there is no example 'amp'", examples("amp").stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
