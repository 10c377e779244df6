"""Bimetal's parameter servers on Ray beside the parameter server of Ray's tutorials (examples/
ray_plain_parameter_server.py): images/s on one cluster of two unequal nodes, both sides in turn.

The slow node, with all that Ray and either side run there, is held to a quarter of a core by a CPU quota; the servers of
both sides are on the head node, beside the driver. Both train the same model on the same data with batches of the same
size, synchronously and in float32, one thread per worker.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "ray"))

import clusters  # noqa: E402  before Ray

import bimetal.ray  # noqa: E402
import ray  # noqa: E402
from cpu_limit import CpuLimit  # noqa: E402
from machine import describe  # noqa: E402
from ranks import BIMETAL  # noqa: E402

PLAIN = ROOT / "examples" / "ray_plain_parameter_server.py"
JOB = ROOT / "examples" / "fashion_mnist.toml"
MODELS = {"cnn": {"model.name": "cnn"}, "mlp": {"model.name": "mlp", "model.hidden": 4632}}
STEPS = {"cnn": 100, "mlp": 40}
HEAD = "node:__internal_head__"
OBJECT_STORE_MB = 2000
TIMEOUT_S = 900


def with_children(pid):
    """A process and all that it has started."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(found for child in children for found in with_children(int(child)))]


def hold(node, limit):
    """Puts a node of Ray under a limit."""
    for started in node.all_processes.values():
        for process in started:
            for pid in with_children(process.process.pid):
                limit.add(pid)


def plain_rate(address, model, batch, steps):
    """images/s of the second half of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "plain.json")
        command = [sys.executable, PLAIN, "--worker", "fast", "--worker", "slow", "--server", HEAD, "--model", model,
                   "--batch", str(batch), "--steps", str(steps), "--warm-up", "2", "--window", "1", "--json", report]
        done = subprocess.run(command, env=os.environ | {"RAY_ADDRESS": address}, capture_output=True,
                              text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        windows = json.loads(report.read_text())["windows"]
    settled = windows[len(windows) // 2:]
    return statistics.harmonic_mean(settled)


def rate_of_both(history, batch):
    """images/s of the second half of the time that both workers were there: the slow one is late. It may be there and get
    nothing, where all that it sends and fetches would hold up the other one by more than its samples are worth."""
    points = [point for point in history if len(point["shares"]) == 2]
    if len(points) < 6:
        raise RuntimeError("the slow worker joined when the job was nearly over: give more --steps")
    first, last = points[len(points) // 2], points[-1]
    return batch * (last["step"] - first["step"]) / (last["elapsed_s"] - first["elapsed_s"])


def bimetal_run(model, batch, steps, settings):
    """images/s likewise, and the Result."""
    result = bimetal.ray.Trainer(
        JOB, [{"fast": 1, "worker": "cpu:threads=1"}, {"slow": 1, "worker": "cpu:threads=1"}],
        settings={"parallel.mode": "server", "train.global_batch": batch, "train.steps": steps, "train.epochs": 1000,
                  "train.evaluate": False, "checkpoint.dir": "''", **MODELS[model], **settings},
        on_event=lambda event: None).fit()
    return rate_of_both(result.history, batch), result


def compare(address, model, options, settings):
    plain, served = [], []
    for _ in range(options.rounds):
        plain.append(plain_rate(address, model, options.batch, options.plain_steps))
        rate, result = bimetal_run(model, options.batch, options.steps or STEPS[model], settings)
        served.append(rate)
        print(f"{model}: plain {plain[-1]:.0f} images/s, Bimetal {rate:.0f}: {rate / plain[-1]:.2f}", flush=True)
        for worker in result.workers:
            print(f"    worker {worker['rank']}: share {worker['share']:.3f}, alone {worker['samples_per_s_alone']:.0f} "
                  f"images/s, computes {worker['compute_s']:.1f} s, waits {worker['wait_s']:.1f} s "
                  f"of {result.metrics['elapsed_s']:.1f} s", flush=True)
    ratios = [ours / theirs for ours, theirs in zip(served, plain)]
    print(f"{model}: Bimetal ÷ plain {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
          f"medians {statistics.median(served):.0f} and {statistics.median(plain):.0f} images/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="default: both; mlp has 25 million "
                                                                               "parameters")
    parser.add_argument("--slow", type=float, default=0.25, help="share of a core that the slow node has")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, help=f"of Bimetal, whose slow worker comes late (default: {STEPS})")
    parser.add_argument("--plain-steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--period-ms", type=float, default=10.0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of Bimetal's job")
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.set)
    print(describe(BIMETAL) | {"ray": ray.__version__, "batch": options.batch, "settings": settings})
    with CpuLimit(options.slow, options.period_ms) as limit:
        cluster, (_, slow) = clusters.start({"fast": 1}, {"slow": 1}, object_store_mb=OBJECT_STORE_MB)
        try:
            print(f"slow node: {options.slow} of a core by {limit.how}")
            hold(slow, limit)
            for model in options.model or MODELS:
                compare(cluster.address, model, options, settings)
        finally:
            clusters.stop(cluster)
            clusters.remove_temporary()


if __name__ == "__main__":
    main()
