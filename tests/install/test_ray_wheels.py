#!/usr/bin/env python3
"""Two machines, a wheel and three commands: `pip install "bimetal[ray]"`, `bimetal ray up` on one and `bimetal ray join` on the other, and
bimetal.ray.Trainer on both. The machines are network namespaces, each with an environment of its own, no compiler in PATH and nothing
of a source tree. torch and Ray are those of the Python that runs this: nothing is downloaded."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "network")]
import namespaces  # noqa: E402
from clean_environment import CleanEnvironment  # noqa: E402
from test_wheels import wheel_for  # noqa: E402

SECONDS = 600  # a very busy machine of two cores
OFFERED = ["--num-cpus", "1", "--object-store-mb", "80"]
TOOLS = ("bash", "cat", "env", "ls", "ps", "sh", "uname")  # what Ray looks for; no compiler among them

TRAIN = """
import os, sys
import bimetal, bimetal.ray, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(config):
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 1, dtype=torch.float64).to(bimetal.device()))
    data = torch.randn(96, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    sampler = bimetal.BalancedBatchSampler(96, 96)
    model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(config["epochs"]):
        for batch in sampler:
            optimizer.zero_grad()
            (model(data[batch]) ** 2).mean().backward()
            optimizer.step()
        bimetal.ray.report({"epoch": epoch, "weight": model.module.weight[0].tolist(), "package": bimetal.__file__,
                            "transport": bimetal.transport(), "ranks": dist.get_world_size()})


def alone(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, dtype=torch.float64)
    data = torch.randn(96, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(config["epochs"]):
        optimizer.zero_grad()
        (model(data) ** 2).mean().backward()
        optimizer.step()
    return model.weight[0].tolist()


if __name__ == "__main__":
    import json
    result = bimetal.ray.Trainer(train, workers=["cpu", "cpu"], config={"epochs": 3}).fit()
    print("RESULT" + json.dumps({"metrics": result.metrics, "workers": result.workers, "alone": alone({"epochs": 3})}))
"""


class Machine:
    """A namespace with an environment in which nothing but the wheel is installed."""

    def __init__(self, test, number):
        self.host = namespaces.Host()
        test.addCleanup(self.host.remove)
        self.environment = CleanEnvironment(type(test), wheel_for("manylinux2014_x86_64"), extra="ray")
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bmw"))  # short: Ray's sockets lie in it
        test.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        tools = self.home / "tools"
        tools.mkdir()
        for tool in TOOLS:
            (tools / tool).symlink_to(shutil.which(tool))
        (self.home / "r").mkdir()
        self.address = f"10.77.0.{number}"
        self.variables = {"PATH": f"{self.environment.place / 'bin'}:{tools}", "HOME": str(self.home), "RAY_TMPDIR": str(self.home / "r"),
                          "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(self.home / "config"), "RAY_worker_niceness": "0",
                          "BIMETAL_ISLAND": f"machine {number}"}  # whose memory the other can't see

    def start(self, *words, **variables):
        log = open(self.home / f"{words[0]}-{len(list(self.home.iterdir()))}.log", "w+")
        command = [shutil.which("ip"), *self.host.command()[1:], str(self.environment.place / "bin" / words[0]), *map(str, words[1:])]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.environment.folder,
                                   env={**self.variables, **variables}, start_new_session=True)
        log.close()
        process.said = lambda: pathlib.Path(log.name).read_text()
        return process


@unittest.skipIf(importlib.util.find_spec("ray") is None, "Ray is not installed: scripts/install_ray.sh")
class TwoMachines(unittest.TestCase):
    def setUp(self):
        self.machines = [Machine(self, number) for number in (1, 2)]
        first, second = self.machines
        namespaces.cable(first.host, "eth0", second.host, "eth0")
        for machine in self.machines:
            machine.host.address("eth0", machine.address + "/24")
            machine.host.ip("route", "add", "default", "dev", "eth0")

    def run_until(self, process, words):
        """Until it has said so; it ends with the test."""
        self.addCleanup(self.end, process)
        until = time.monotonic() + SECONDS
        while words not in process.said():
            self.assertIsNone(process.poll(), process.said())
            self.assertLess(time.monotonic(), until, process.said())
            time.sleep(0.1)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def train(self, machine):
        """On the cluster, by a program that is started on this machine."""
        (machine.environment.folder / "train.py").write_text(TRAIN)
        program = machine.start("bimetal", "ray", "run", "train.py")
        self.addCleanup(self.end, program)
        self.assertEqual(program.wait(SECONDS), 0, program.said())
        result = json.loads(re.search("RESULT(.*)", program.said())[1])
        self.assertEqual(sorted(worker["address"] for worker in result["workers"]), [each.address for each in self.machines])
        self.assertEqual((result["metrics"]["ranks"], result["metrics"]["transport"]), (2, "tcp"))
        for here, there in zip(result["metrics"]["weight"], result["alone"], strict=True):
            self.assertAlmostEqual(here, there, delta=1e-12)
        packages = [str(each.environment.packages) for each in self.machines]
        self.assertTrue(result["metrics"]["package"].startswith(tuple(packages)), result["metrics"]["package"])

    def test_up_join_and_a_trainer(self):
        first, second = self.machines
        self.run_until(first.start("bimetal", "ray", "up", "--host", first.address, *OFFERED), "Ctrl-C ends this node")
        (second.home / ".ray").mkdir(mode=0o700)
        shutil.copy2(first.home / ".ray" / "auth_token", second.home / ".ray" / "auth_token")  # as scp -p does
        self.run_until(second.start("bimetal", "ray", "join", first.address, *OFFERED), "Ctrl-C ends this node")
        self.train(first)


if __name__ == "__main__":
    reason = namespaces.why_not() or (os.geteuid() != 0 and "needs root")
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
