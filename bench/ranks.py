"""Starts the ranks of one job, each under its own CPU limit, and collects their results."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from cpu_limit import CpuLimit
from finish import outputs_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIMETAL = os.environ.get("BIMETAL", str(ROOT / "build" / "bimetal"))
TIMEOUT_S = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(commands, speeds, period_ms, placed, places=None):
    """Processes of commands[r] at speeds[r], after places[r]() in each; what is left of them is killed in the end.

    `placed`: they are told their ranks in one job.
    """
    port = free_port()
    processes = []
    with contextlib.ExitStack() as stack:
        for rank, (command, speed) in enumerate(zip(commands, speeds)):
            limit = stack.enter_context(CpuLimit(speed, period_ms))
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            if placed:
                env |= {"RANK": str(rank), "WORLD_SIZE": str(len(commands)), "LOCAL_RANK": str(rank),
                        "LOCAL_WORLD_SIZE": str(len(commands)),
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=in_turn(limit.enter, places[rank] if places else None))
            stack.callback(process.wait)
            stack.callback(process.kill)
            limit.watch(process.pid)
            processes.append(process)
        yield processes


def run_ranks(commands, speeds, period_ms, separate=False, places=None):
    """Runs commands[r] as rank r at speeds[r], after places[r]() in its process; returns each one's standard output.

    With `separate` they are jobs of one rank each, merely running at the same time.
    """
    with started(commands, speeds, period_ms, not separate and len(commands) > 1, places) as processes:
        return outputs_of(processes, " | ".join(" ".join(map(str, command)) for command in commands), TIMEOUT_S)


def in_turn(*functions):
    def call():
        for function in functions:
            if function:
                function()
    return call


def torch_rates(batches, speeds, seconds, period_ms, separate=False):
    """images/s of each rank of torch DDP (or of separate single processes)."""
    script = str(ROOT / "bench" / "torch_ddp_worker.py")
    commands = [[sys.executable, script, "--batch", str(b), "--seconds", str(seconds)] for b in batches]
    results = [json.loads(out.splitlines()[-1])
               for out in run_ranks(commands, speeds, period_ms, separate)]
    return [r["images"] / r["seconds"] for r in results]


def bimetal_reports(batch, steps, speeds, period_ms, balance="auto", separate=False, settings=(),
                    places=None, job=ROOT / "examples" / "fashion_mnist.toml"):
    """The report of a job of len(speeds) ranks, or of each of as many separate jobs."""
    with tempfile.TemporaryDirectory() as folder:
        commands, reports = [], []
        jobs = len(speeds) if separate else 1
        for rank in range(len(speeds)):
            report = pathlib.Path(folder, f"{rank if jobs > 1 else 0}.json")
            overrides = [f"train.global_batch={batch[rank] if separate else batch}",
                         f"train.steps={steps[rank] if separate else steps}", "train.epochs=1000",
                         "train.evaluate=false", "checkpoint.dir=''",
                         f"parallel.balance={json.dumps(balance)}", *settings]
            command = [BIMETAL, "train", str(job)]
            if separate or len(speeds) == 1:
                command += ["--worker", "cpu:threads=1"]
            else:
                command += ["--worker", "cpu:threads=1"] * len(speeds)
            for override in overrides:
                command += ["--set", override]
            commands.append(command + ["--report", str(report)])
            reports.append(report)
        run_ranks(commands, speeds, period_ms, separate or len(speeds) == 1, places)
        return [json.loads(path.read_text()) for path in reports[:jobs]]
