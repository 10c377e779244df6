#!/usr/bin/env python3
"""The program's wheel of dist/ (make program-wheel), beside the package's in an environment of its own: `bimetal train` finds it,
and trains; Python has what needs libtorch, without a compiler and a source tree."""

import json
import pathlib
import re
import subprocess
import sys
import time
import unittest
import zipfile

import torch
from clean_environment import CleanEnvironment

ROOT = pathlib.Path(__file__).parents[2]
TORCH = ".".join(torch.__version__.split(".")[:2])
DEMO_SECONDS = 900  # a very busy machine
TRAIN = ["train", str(ROOT / "examples" / "fashion_mnist.toml"), "--worker", "cpu:threads=1", "--worker",
         "cpu:threads=1,speed=0.5", "--set", "train.steps=12", "--set", "train.evaluate=false", "--set", "train.global_batch=64"]

# ZeRO, stages and parts on two ranks, each beside the whole model in one process.
PARALLEL = """
import copy, os, torch, torch.distributed as dist
from torch import nn
import bimetal
assert bimetal.__file__.startswith(os.environ["INSTALLED"]), bimetal.__file__
dist.init_process_group("bimetal")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
inputs, targets = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
rank, half = dist.get_rank(), slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)

def learn(model, optimizer, step):
    for _ in range(3):
        optimizer.zero_grad()
        step()
        optimizer.step()

def kit():
    own = copy.deepcopy(model)
    return own, torch.optim.AdamW(own.parameters(), lr=0.01)

def same(weights, what):
    if rank == 0:
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-12)
        print(what)

alone, optimizer = kit()
learn(alone, optimizer, lambda: ((alone(inputs) - targets) ** 2).sum().div(8).backward())
expected = alone.state_dict()

own, optimizer = kit()
sharded = bimetal.zero.shard(own, optimizer, level=3)
learn(own, optimizer, lambda: ((own(inputs[half]) - targets[half]) ** 2).sum().div(4).backward())
same(sharded.state_dict(), "zero")

own, optimizer = kit()
staged = bimetal.pipeline.stages(own, optimizer, cuts=[2], loss_sum=lambda out, wanted: ((out - wanted) ** 2).sum(), weight=len)
learn(own, optimizer, lambda: staged.forward_backward(inputs, targets=targets))
same(staged.state_dict(), "pipeline")

own, optimizer = kit()
parted = bimetal.tensor.parts(own, optimizer, plan={"0": "columns", "2": "rows"})
learn(own, optimizer, lambda: ((own(inputs) - targets) ** 2).sum().div(8).backward())
same(parted.state_dict(), "tensor")
dist.destroy_process_group()
"""


def wheel(pattern):
    found = sorted((ROOT / "dist").glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"dist/ has {len(found)} of {pattern}: make program-wheel")
    return found[0]


class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wheel = wheel(f"bimetal_program-*.post{TORCH.replace('.', '')}-*-manylinux_*.whl")
        cls.installed = CleanEnvironment(cls, wheel("bimetal-*-manylinux2014_x86_64.whl"), cls.wheel)
        cls.program = cls.installed.packages / "bimetal_program" / "bimetal"

    def test_it_depends_on_its_torch(self):
        with zipfile.ZipFile(self.wheel) as archive:
            about, = (name for name in archive.namelist() if name.endswith("/METADATA"))
            text = archive.read(about).decode()
        self.assertIn(f"Requires-Dist: torch=={TORCH}.*", text)

    def test_pip_takes_the_one_for_the_torch_that_is_there(self):
        """Out of those for several, a later one's among them."""
        minor = int(TORCH.split(".")[1])
        for other in (minor - 1, minor + 1):
            subprocess.run([sys.executable, ROOT / "scripts" / "make_program_wheel.py", self.program, f"2.{other}", "linux_x86_64",
                            self.installed.folder], check=True, capture_output=True)
        self.assertEqual(len(list(self.installed.folder.glob("bimetal_program-*.whl"))), 2)
        alone = CleanEnvironment(type(self), wheel("bimetal-*-manylinux2014_x86_64.whl"))
        done = alone.pip("install", "--dry-run", "--no-index", "--report", "report.json", f"--find-links={self.installed.folder}",
                         f"--find-links={self.wheel.parent}", "bimetal[train]", f"torch=={TORCH}.*")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        taken = json.loads((alone.folder / "report.json").read_text())["install"]
        self.assertEqual([one["download_info"]["url"] for one in taken], [self.wheel.as_uri()])

    def test_no_place_of_the_building_machine_is_in_it(self):
        for program in (self.program, self.program.with_name("bimetal-torch")):
            found = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
            paths, = re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", found)
            for path in paths.split(":"):
                self.assertTrue(path.startswith("$ORIGIN/"), paths)

    def test_training(self):
        done = self.installed.run("bimetal", *TRAIN, "--report", "report.json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads((self.installed.folder / "report.json").read_text())
        self.assertEqual(sum(worker["samples"] for worker in report["workers"]), 12 * 64)

    def test_what_of_python_needs_libtorch(self):
        """Without a compiler, and of the wheels alone."""
        (self.installed.folder / "parallel.py").write_text(PARALLEL)
        done = self.installed.run("bimetal", "launch", "-n", "2", "parallel.py", environment={"PATH": str(self.installed.place / "bin")})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.splitlines(), ["[0] zero", "[0] pipeline", "[0] tensor"])
        found = self.installed.run("python", "-c", "import bimetal.library.interface as core; print(core.PATH)")
        self.assertEqual(found.stdout.strip(), str(self.program.with_name("libbimetal_torch.so")), found.stderr)

    def test_a_task_written_in_python(self):
        copied = self.installed.run("python", "-m", "bimetal.examples", "own_model.toml", "python", "--to", "mine")
        self.assertEqual(copied.returncode, 0, copied.stderr)
        done = self.installed.run("bimetal", "train", "mine/own_model.toml", "--set", "train.steps=4", "--set", "train.evaluate=false",
                                  "--report", "report.json", environment={"PYTHONPATH": "mine/python"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads((self.installed.folder / "report.json").read_text())
        self.assertEqual(sum(worker["samples"] for worker in report["workers"]), 4 * 250)

    def test_from_pip_to_the_end_of_the_demo(self):
        """The first things that a user sees, except for torch's download."""
        begun = time.monotonic()
        fresh = CleanEnvironment(type(self), wheel("bimetal-*-manylinux2014_x86_64.whl"), self.wheel)
        done = fresh.run("bimetal", "demo", "--quick", seconds=DEMO_SECONDS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?s)How fast is .* alone\?.*balanced.*test accuracy")
        print(f"an environment, pip install of both wheels, the demo to its end: {time.monotonic() - begun:.1f} s")

    def test_launch_and_token_have_all_of_their_options(self):
        (self.installed.folder / "rank.py").write_text("import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
        (self.installed.folder / "job.token").unlink(missing_ok=True)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1",
                 "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "localhost", "SLURM_NNODES": "1",
                 "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}
        for words, lines, more in ((("-H", "localhost:2", "--", "python", "rank.py"), ["[0] 0 of 2", "[1] 1 of 2"], {}),
                                   (("-n", "2", "rank.py"), ["[0] 0 of 2", "[1] 1 of 2"], {}),
                                   (("--slurm", "--", "python", "rank.py"), ["1 of 2"], slurm)):
            done = self.installed.run("bimetal", "launch", *words, environment={
                **more, "PATH": f"{self.installed.place / 'bin'}:/usr/bin:/bin"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(sorted(done.stdout.splitlines()), lines)
        self.assertEqual(self.installed.run("bimetal", "token", "job.token").returncode, 0)
        done = self.installed.run("bimetal", "token", "--monitor", "job.token")
        self.assertRegex(done.stdout, r"^[0-9a-f]{64}\n$", done.stderr)

    def test_the_commands_that_are_pythons(self):
        for command in ("tune", "ensemble", "data"):
            done = self.installed.run("bimetal", command, "--help")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"usage: bimetal {command}", done.stdout)

    def test_beside_torch_it_needs_nothing_said(self):
        """As pip lays them down; in this environment torch is elsewhere."""
        (self.installed.packages / "torch").symlink_to(pathlib.Path(torch.__file__).parent)
        self.addCleanup((self.installed.packages / "torch").unlink)
        done = self.installed.run(self.program, "--version")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_torch_is_refused(self):
        built_for = self.program.with_name("torch_version")
        self.addCleanup(built_for.write_text, built_for.read_text())
        built_for.write_text("2.1\n")
        done = self.installed.run("bimetal", *TRAIN)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("pip install 'torch==2.1.*'", done.stderr)

    def test_without_it_the_command_says_what_to_install(self):
        alone = CleanEnvironment(type(self), wheel("bimetal-*-manylinux2014_x86_64.whl"))
        done = alone.run("bimetal", *TRAIN)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("pip install 'bimetal[train]'", done.stderr)
        done = alone.run("bimetal", "token", "--monitor", "job.token")
        self.assertIn("knows no --monitor without the program, which is not installed here: pip install 'bimetal[train]'", done.stderr)
        done = alone.run("bimetal", "launch", "-H", "localhost:2", "--", "true")  # for which no torch is needed
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
