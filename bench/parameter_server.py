"""Parameter servers between a worker at full speed and one at a quarter, beside each worker alone and
balanced all-reduce: images/s as a share of the sum of the solo rates; with --accuracy the time of training
until the model is that good.

The speeds are CPU quotas. In server mode the fast worker and the server run under no quota of their own;
the slow worker joins from a process under its quota, as one on another machine would.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from cpu_limit import CpuLimit
from machine import describe
from ranks import BIMETAL, ROOT, bimetal_reports, free_port

JOB = ROOT / "examples" / "fashion_mnist.toml"


def server_report(consistency, steps, batch, speeds, period_ms, settings=()):
    """The report of one job of a server and len(speeds) workers. If a key is set twice, the last counts."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        token, report = pathlib.Path(folder, "token"), pathlib.Path(folder, "run.json")
        subprocess.run([BIMETAL, "token", token], check=True, capture_output=True)
        address = f"127.0.0.1:{free_port()}"
        overrides = ["parallel.mode=server", f"servers.consistency={consistency}",
                     f"train.global_batch={batch}", f"train.steps={steps}", "train.epochs=1000",
                     "train.evaluate=false", "checkpoint.dir=''", *settings]
        command = [BIMETAL, "train", str(JOB), "--listen", address, "--token-file", token,
                   "--worker", "cpu:threads=1", "--report", report]
        command += [part for override in overrides for part in ("--set", override)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        host = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for speed in speeds[1:]:
            limit = stack.enter_context(CpuLimit(speed, period_ms))
            joined = subprocess.Popen([BIMETAL, "join", address, "--token-file", token, "--worker",
                                       "cpu:threads=1"], env=env, preexec_fn=limit.enter,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(joined.wait, 60)
            limit.watch(joined.pid)
        out, _ = host.communicate(timeout=900)
        if host.returncode != 0:
            raise RuntimeError(out)
        return json.loads(report.read_text())


def settled_rate(report):
    """images/s of the second half, when every worker is there."""
    points = report["history"]
    middle = next(p for p in points if p["step"] >= points[-1]["step"] / 2)
    samples = sum(middle["shares"]) * (points[-1]["step"] - middle["step"])
    return samples / (points[-1]["elapsed_s"] - middle["elapsed_s"])


def seconds_to(report, accuracy):
    """The seconds of training alone. Between two evaluations the accuracy is taken to grow evenly."""
    time, reached = 0.0, 0.1  # ten classes
    for point in report["evaluations"]:
        if point["test_accuracy"] >= accuracy:
            part = (accuracy - reached) / (point["test_accuracy"] - reached)
            return time + part * (point["elapsed_s"] - time)
        time, reached = point["elapsed_s"], point["test_accuracy"]
    raise RuntimeError(f"{reached:.3f} after {time:.0f} s: more --epochs are needed")


def compare_times(options, speeds):
    """Compares all modes with the job's batch and learning rate, evaluated after each epoch."""
    settings = [f"train.epochs={options.epochs}", "train.evaluate=true", "train.steps=0", *options.set]
    times = {}
    for round_ in range(options.rounds):
        settings_now = [*settings, f"train.seed={round_ + 1}"]
        reports = {"all_reduce": bimetal_reports(options.batch, 0, speeds, options.period_ms, settings=settings_now)[0]}
        for consistency in options.consistency:
            reports[consistency] = server_report(consistency, 0, options.batch, speeds, options.period_ms, settings_now)
        for name, report in reports.items():
            times.setdefault(name, []).append(seconds_to(report, options.accuracy))
            curve = " ".join(f"{point['test_accuracy']:.3f}@{point['elapsed_s']:.0f}s" for point in report["evaluations"])
            print(f"{name:>10}: {times[name][-1]:.1f} s to {options.accuracy}; {curve}", flush=True)
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, times["all_reduce"])]
        print(f"{name:>10}: {statistics.median(ratios):.3f} of all-reduce's time to {options.accuracy} "
              f"({min(ratios):.3f} to {max(ratios):.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--period-ms", type=float, default=10.0)
    parser.add_argument("--accuracy", type=float, help="measure the time to this test accuracy: 0.88")
    parser.add_argument("--epochs", type=int, default=4, help="with --accuracy: as many as that needs")
    parser.add_argument("--consistency", action="append", choices=["sync", "bounded", "async"],
                        help="may be repeated (default: all three)")
    parser.add_argument("--set", action="append", default=[], help="with --accuracy: a key of the job")
    options = parser.parse_args()
    options.consistency = options.consistency or ["sync", "bounded", "async"]
    print(describe(BIMETAL))
    speeds = [1.0, options.slow]
    if options.accuracy:
        compare_times(options, speeds)
        return
    ratios = {}
    for _ in range(options.rounds):
        batches = [options.batch, int(options.batch * options.slow)]
        alone = bimetal_reports(batches, [options.steps // 2] * 2, speeds, options.period_ms, separate=True)
        sum_alone = sum(report["samples_per_s"] for report in alone)
        reduced = bimetal_reports(options.batch, options.steps, speeds, options.period_ms)[0]
        ratios.setdefault("all_reduce", []).append(settled_rate(reduced) / sum_alone)
        for consistency in options.consistency:
            report = server_report(consistency, options.steps, options.batch, speeds, options.period_ms)
            ratios.setdefault(consistency, []).append(settled_rate(report) / sum_alone)
            print(f"{consistency}: shares {[round(w['share'], 3) for w in report['workers']]}, "
                  f"staleness {report['server']['staleness_mean']:.2f}", flush=True)
    for name, values in ratios.items():
        print(f"{name:>10}: {statistics.median(values):.3f} of the sum alone "
              f"({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
