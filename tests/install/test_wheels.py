#!/usr/bin/env python3
"""The wheels of dist/ (make wheels): what is in them, and the Linux one installed into an environment of its own and used
there by two ranks. The torch of that environment is this one's: nothing is downloaded (make test-wheel-versions runs it with many).

The libraries in the wheels for other systems meet ranks of this one in tests/portability/test_library_peers.py.
"""

import email
import pathlib
import platform
import re
import socket
import subprocess
import sys
import threading
import time
import unittest
import zipfile

import readme
import torch
from clean_environment import SECONDS, CleanEnvironment

ROOT = pathlib.Path(__file__).parents[2]
DIST = ROOT / "dist"
MOST_BYTES = 2_000_000
TORCH = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
OLDEST_TORCH, NAMES_BY_ENTRY_POINT = (2, 4), (2, 5)
TAGS = {"manylinux2014_x86_64": "so", "manylinux2014_aarch64": "so", "macosx_11_0_arm64": "dylib", "win_amd64": "dll"}

TRAIN = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
if "IMPORT_FIRST" in os.environ:
    import bimetal
dist.init_process_group("bimetal")  # a name that torch knows by the wheel's entry point
import bimetal
from bimetal import BalancedBatchSampler, sample_exact_hook
assert bimetal.__file__.startswith(os.environ["INSTALLED"]), bimetal.__file__
rank = dist.get_rank()
total = torch.full((3,), float(rank + 1))
dist.all_reduce(total)
assert total.tolist() == [3.0] * 3, total
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1, dtype=torch.float64))
alone = nn.Linear(4, 1, dtype=torch.float64)
alone.load_state_dict(model.module.state_dict())
data = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
sampler = BalancedBatchSampler(12, 12, balance="fixed", weights=[3, 1])
model.register_comm_hook(sampler, sample_exact_hook)
for batch in sampler:
    (model(data[batch]) ** 2).mean().backward()
(alone(data) ** 2).mean().backward()
torch.testing.assert_close(model.module.weight.grad, alone.weight.grad, rtol=1e-12, atol=1e-12)
dist.destroy_process_group()
print(f"rank {rank} of {dist.is_initialized()}, {bimetal.device()}")
"""

FIRST = """
import bimetal, torch
torch.distributed.init_process_group("bimetal")
number = torch.tensor([1.0 + torch.distributed.get_rank()])
torch.distributed.all_reduce(number)
print("sum", number.item())
torch.distributed.destroy_process_group()
"""


def wheel_for(tag):
    found = sorted(DIST.glob(f"bimetal-*-py3-none-{tag}.whl"))
    if len(found) != 1:
        raise AssertionError(f"dist/ has {len(found)} wheels for {tag}: make wheels")
    return found[0]


class Wheels(unittest.TestCase):
    def test_what_is_in_them(self):
        for tag, ending in TAGS.items():
            with self.subTest(tag), zipfile.ZipFile(wheel_for(tag)) as wheel:
                self.assertLessEqual(wheel_for(tag).stat().st_size, MOST_BYTES)
                names = wheel.namelist()
                self.assertIn(f"bimetal/libbimetal_core.{ending}", names)
                program, = (name for name in names if "bimetal_lite" in name)
                self.assertEqual(program, "bimetal/bimetal_lite" + (".exe" if tag == "win_amd64" else ""))
                self.assertEqual(wheel.getinfo(program).external_attr >> 16 & 0o111, 0o111)
                about, = (name for name in names if name.endswith("/METADATA"))
                metadata = email.message_from_bytes(wheel.read(about))
                self.assertEqual(metadata.get_all("Requires-Dist")[0], "torch>=2.4")
                self.assertIn("extra == 'train' and (", metadata.get_all("Requires-Dist")[1])
                self.assertIn("bimetal_autoload/__init__.py", names)
                self.assertIn(f"Tag: py3-none-{tag}".encode(), wheel.read(about.replace("METADATA", "WHEEL")))
                self.assertEqual(len(names), len(set(names)))
                self.assertIsNone(wheel.testzip())


linux = unittest.skipUnless(sys.platform == "linux" and platform.machine() == "x86_64", "the wheel is for another system")


@linux
@unittest.skipUnless(TORCH >= OLDEST_TORCH, "this torch is too old")
class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.installed = CleanEnvironment(cls, wheel_for("manylinux2014_x86_64"))

    def test_from_pip_to_an_all_reduce(self):
        begun = time.monotonic()
        fresh = CleanEnvironment(type(self), wheel_for("manylinux2014_x86_64"))
        (fresh.folder / "first.py").write_text(FIRST)
        done = fresh.run("bimetal", "launch", "-n", "2", "first.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] sum 3.0", "[1] sum 3.0"])
        print(f"an environment, pip install of the wheel, two ranks' first all_reduce: {time.monotonic() - begun:.1f} s")

    def test_two_ranks_train(self):
        (self.installed.folder / "train.py").write_text(TRAIN)
        done = self.installed.run("bimetal", "launch", "-n", "2", "train.py",
                                  environment={} if TORCH >= NAMES_BY_ENTRY_POINT else {"IMPORT_FIRST": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("of False"), 2, done.stdout)

    def test_the_readmes_examples(self):
        programs = readme.programs()
        self.assertTrue(programs)
        for program in programs:
            (self.installed.folder / "shown.py").write_text(program)
            done = self.installed.run("bimetal", "launch", "-n", "2", "shown.py")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(sorted(done.stdout.splitlines()), [f"[{rank}] {readme.BATCHES}" for rank in range(2)])

    def test_launch_shared_by_a_code(self):
        """Two users of this machine, each with an environment that has only the wheel."""
        other = CleanEnvironment(type(self), wheel_for("manylinux2014_x86_64"))
        for one in (self.installed, other):
            (one.folder / "first.py").write_text(FIRST)
            (one.folder / "config").mkdir(exist_ok=True)
        host = subprocess.Popen(self.installed.command("bimetal", "launch", "--share", "--listen", "127.0.0.1:0", "first.py"),
                                **self.installed.process({"XDG_CONFIG_HOME": str(self.installed.folder / "config")}))
        self.addCleanup(host.kill)
        said = ""
        while "within two minutes" not in said:
            line = host.stderr.readline()
            self.assertTrue(line, said)
            said += line
        place = re.search(r"run: bimetal join (\S+)", said)[1]
        code = re.search(r"within two minutes: ([a-z-]+)", said)[1]
        guest = other.run("bimetal", "join", place, environment={"BIMETAL_CODE": code, "XDG_CONFIG_HOME": str(other.folder / "config")})
        self.assertEqual(guest.returncode, 0, guest.stdout + guest.stderr)
        out, errors = host.communicate(timeout=SECONDS)
        self.assertEqual(host.returncode, 0, out + said + errors)
        self.assertEqual(out, "[0] sum 3.0\n")
        self.assertIn("[1] sum 3.0\n", guest.stdout)

    def test_launch_on_named_hosts(self):
        (self.installed.folder / "first.py").write_text(FIRST)
        done = self.installed.run("bimetal", "launch", "-H", "localhost:2", "--",
                                  self.installed.place / "bin" / "python", "first.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] sum 3.0", "[1] sum 3.0"])
        self.assertIn("--hostfile", self.installed.run("bimetal", "launch", "--help").stdout)

    def test_token(self):
        file = self.installed.folder / "a token"
        self.assertEqual(self.installed.run("bimetal", "token", str(file)).returncode, 0)
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertEqual(len(file.read_text().strip()), 64)
        again = self.installed.run("bimetal", "token", str(file))
        self.assertEqual(again.returncode, 13, again.stderr)

    def test_doctor(self):
        alone = self.installed.run("bimetal", "doctor")
        self.assertIn("torch " + str(torch.__version__), alone.stdout, alone.stderr)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        listening = threading.Thread(target=lambda: said.append(self.installed.run("bimetal", "doctor", "--listen", address)))
        said = []
        listening.start()
        said.append(self.installed.run("bimetal", "doctor", address))
        listening.join()
        for done in said:
            self.assertIn("connections: in both directions", done.stdout, done.stderr)
            self.assertRegex(done.stdout, r"link: .* Mbit/s from here")

    def test_top(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
        done = self.installed.run("bimetal", "top", address, "--once")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(f"no monitor can be reached at {address}", done.stderr)

    def test_what_is_the_programs_it_says(self):
        done = self.installed.run("bimetal", "train", "job.toml", environment={"PATH": "/usr/bin:/bin"})
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("bimetal[train]", done.stderr)

    def test_what_it_lacks_it_says(self):
        for call in ("pipeline.stages(torch.nn.Linear(2, 2))", "zero.shard(torch.nn.Linear(2, 2))",
                     "monitor(bimetal.BalancedBatchSampler(4, 2), loss=float)"):
            done = self.installed.run("python", "-c", f"import torch, bimetal; bimetal.{call}")
            self.assertRegex(done.stderr, r"needs bimetal's torch library: it is not installed here: .*'bimetal\[train\]'")


@linux
@unittest.skipUnless(TORCH < OLDEST_TORCH, "this torch is new enough")
class TooOld(unittest.TestCase):
    """A torch that was there before, and that pip was told to leave alone."""

    @classmethod
    def setUpClass(cls):
        cls.installed = CleanEnvironment(cls, wheel_for("manylinux2014_x86_64"))

    def test_it_is_refused_in_words_that_say_what_to_install_and_torch_is_not_disturbed(self):
        for words in (("python", "-c", "import bimetal"), ("bimetal", "doctor")):
            done = self.installed.run(*words)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"ImportError: bimetal .* needs torch 2\.4 or later, but torch 2\..* is installed: pip install")
        done = self.installed.run("python", "-c", "import torch.distributed as dist; print(dist.is_available())")
        self.assertEqual(done.stdout, "True\n", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
