#!/usr/bin/env python3
"""Builds the Python package's wheel, installs it into an empty folder, and uses it from there.

Run it with the Python whose torch the wheel is to fit (make test-wheel). The build folder, build-wheel, stays, so that
the next time only what changed is compiled. With BIMETAL_SOURCE_ARCHIVE (make release) it is built of that archive instead.
"""

import email
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).parents[2]
BUILD_SECONDS = 2400
RUN_SECONDS = 120
TRAIN = """
import os, torch, torch.distributed as dist
import bimetal
assert os.path.realpath(bimetal.__file__).startswith(os.environ["INSTALLED"]), bimetal.__file__
dist.init_process_group("bimetal")
total = torch.full((3,), float(dist.get_rank() + 1))
dist.all_reduce(total)
assert total.tolist() == [3.0, 3.0, 3.0], total
dist.destroy_process_group()
"""


def pip(*arguments: object, seconds: float) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)],
                          capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise AssertionError(f"pip {arguments[0]}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def unpacked(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    sources, = folder.iterdir()
    return sources


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        dist = pathlib.Path(cls.folder.name, "dist")
        archive = os.environ.get("BIMETAL_SOURCE_ARCHIVE")
        sources = unpacked(pathlib.Path(archive), pathlib.Path(cls.folder.name, "sources")) if archive else ROOT
        pip("wheel", "--no-build-isolation", "--no-deps", "-w", dist, sources,
            seconds=BUILD_SECONDS * (2 if archive else 1))
        cls.wheel, = dist.glob("*.whl")
        cls.installed = pathlib.Path(cls.folder.name, "installed").resolve()
        pip("install", "--no-deps", "--no-index", "--target", cls.installed, cls.wheel, seconds=RUN_SECONDS)

    def run_python(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PYTHONPATH": str(self.installed), "INSTALLED": str(self.installed)}
        return subprocess.run([sys.executable, *arguments], cwd=self.folder.name, env=environment, capture_output=True,
                              text=True, timeout=RUN_SECONDS)

    def test_its_version_and_what_it_needs_name_the_torch(self):
        import torch

        series = ".".join(torch.__version__.split("+")[0].split(".")[:2])
        with zipfile.ZipFile(self.wheel) as archive:
            name, = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(archive.read(name))
        self.assertTrue(metadata["Version"].endswith(f"+torch{series}"), metadata["Version"])
        self.assertIn(f"torch=={series}.*", [need.replace(" ", "") for need in metadata.get_all("Requires-Dist")])

    def test_it_holds_the_package_and_nothing_else(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
        self.assertEqual({name.split("/")[0].split("-")[0] for name in names}, {"bimetal", "bimetal_autoload"})
        for wanted in ("bimetal/py.typed", "bimetal/_C.pyi", "bimetal/_build.py", "bimetal/ray/trainer.py",
                       "bimetal/horovod/torch/__init__.py", "bimetal/libbimetal_core.so", "bimetal/libbimetal_torch.so"):
            self.assertIn(wanted, names)

    def test_two_ranks_train_with_it(self):
        script = pathlib.Path(self.folder.name, "train.py")
        script.write_text(TRAIN)
        done = self.run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])

    def test_it_brings_the_command(self):
        done = self.run_python(str(self.installed / "bin" / "bimetal"), "token")
        self.assertRegex(done.stdout, r"^[0-9a-f]{64}\n$", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
