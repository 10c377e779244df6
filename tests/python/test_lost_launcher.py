"""Ranks end when their launcher is gone, whatever they are doing."""

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ranks
import torch.distributed as dist

import bimetal
from searches import harness


def wait_for_the_end(folder):
    """Says who it is, and keeps Python's lock: nothing that is written in Python runs in this process any more."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("bimetal")
    else:
        import bimetal.horovod.torch as hvd
        hvd.init()
        hvd.barrier()
    pathlib.Path(folder, f"{os.getpid()}.new").write_text("")
    pathlib.Path(folder, f"{os.getpid()}.new").rename(pathlib.Path(folder, str(os.getpid())))
    while True:
        ctypes.PyDLL(None).sleep(600)


def lives(pid):
    return harness.state_of(pid) not in ("Z", "X", "gone")


@unittest.skipUnless(sys.platform == "linux", "asks /proc")
class LostLauncher(unittest.TestCase):
    def killed(self, command, **environment):
        """Whether two ranks, started by the command, end when it is killed; they run this file."""
        with tempfile.TemporaryDirectory() as folder:
            program = (f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); "
                       f"import test_lost_launcher as t; t.wait_for_the_end({folder!r})")
            file = pathlib.Path(folder, "program.py")
            file.write_text(program)
            unset = [f"--unset={name}" for name in ("MASTER_ADDR", "MASTER_PORT", *ranks.VARIABLES)]
            with open(pathlib.Path(folder, "output"), "wb") as output:
                launcher = subprocess.Popen(["env", *unset, *(f"{name}={value}" for name, value in environment.items()),
                                             *(part.format(file=file) for part in command)],
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            found = []
            try:
                until = time.monotonic() + 120
                while len(found) < 2:
                    self.assertIsNone(launcher.poll(), pathlib.Path(folder, "output").read_text())
                    self.assertLess(time.monotonic(), until, pathlib.Path(folder, "output").read_text())
                    time.sleep(0.1)
                    found = [int(path.name) for path in pathlib.Path(folder).iterdir() if path.name.isdigit()]
                launcher.kill()
                launcher.wait()
                until = time.monotonic() + 30
                while any(lives(pid) for pid in found) and time.monotonic() < until:
                    time.sleep(0.1)
                self.said = pathlib.Path(folder, "output").read_text()
                return not any(lives(pid) for pid in found)
            finally:
                launcher.kill()
                launcher.wait()
                for pid in found:
                    if lives(pid):
                        os.kill(pid, signal.SIGKILL)

    def test_mpirun(self):
        found = [command for command in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(command)]
        if not found:
            self.skipTest("neither mpirun.openmpi nor mpirun.mpich is installed")
        for command in found:
            more = ["--oversubscribe", "--allow-run-as-root"] if "openmpi" in command else []
            with self.subTest(command):
                self.assertTrue(self.killed([command, *more, "-n", "2", sys.executable, "{file}"]))
            with self.subTest(f"{command}, through a shell"):
                script = f"{sys.executable} {{file}}; true"
                self.assertTrue(self.killed([command, *more, "-n", "2", "sh", "-c", script],
                                            MASTER_ADDR="127.0.0.1", MASTER_PORT=ranks.free_port()))

    def test_torchrun(self):
        self.assertTrue(self.killed([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                                     "--master-port", str(ranks.free_port()), "{file}"]))

    def test_bimetal_launch(self):
        """The launcher's ranks are started beside threads of its own."""
        self.assertTrue(self.killed([sys.executable, "-m", "bimetal.command", "launch", "-n", "2", sys.executable, "{file}"]))


if __name__ == "__main__":
    ranks.main(globals())
