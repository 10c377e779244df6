#!/usr/bin/env python3
"""One CPU worker in float32 and bfloat16: Bimetal beside torch with torch.autocast, in turn, in one run.

The same CNN, data set, batch and optimizer, one thread each. Prints for both precisions each side's
milliseconds a step and peak memory, and the ratios ours / theirs: medians of the rounds, below 1 Bimetal is better.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import machine
import ranks


def run(command):
    """Its standard output, and the most memory that it or a process of its own had, in MiB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env=os.environ | {"OMP_NUM_THREADS": "1"})
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))} failed")
    return output, usage.ru_maxrss / 1024


def torch_figures(batch, seconds, precision):
    worker = ranks.ROOT / "bench" / "torch_ddp_worker.py"
    output, memory = run([sys.executable, str(worker), "--batch", str(batch), "--seconds", str(seconds),
                          "--precision", precision])
    figures = json.loads(output.splitlines()[-1])
    return 1000 * figures["seconds"] / figures["steps"], memory


def bimetal_figures(batch, steps, precision):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        command = [ranks.BIMETAL, "train", str(ranks.ROOT / "examples" / "fashion_mnist.toml"),
                   "--worker", f"cpu:threads=1,precision={precision}", "--report", str(report)]
        for setting in (f"train.global_batch={batch}", f"train.steps={steps}", "train.epochs=1000",
                        f"train.micro_batch={batch}", "train.evaluate=false", "checkpoint.dir=''"):
            command += ["--set", setting]
        _, memory = run(command)
        figures = json.loads(report.read_text())
        return 1000 * figures["elapsed_s"] / figures["steps"], memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    print(json.dumps(machine.describe(ranks.BIMETAL)))
    print(f"{'precision':10}{'ms/step':>10}{'torch':>8}{'ratio':>7}{'MiB':>8}{'torch':>8}{'ratio':>7}")
    for precision in ("float32", "bfloat16"):
        rounds = []
        for _ in range(args.rounds):
            theirs = torch_figures(args.batch, args.seconds, precision)
            steps = max(10, int(1000 * args.seconds / theirs[0]))
            rounds.append((bimetal_figures(args.batch, steps, precision), theirs))
        row = f"{precision:10}"
        for what, digits in ((0, 1), (1, 0)):
            ours = statistics.median(o[what] for o, _ in rounds)
            torchs = statistics.median(t[what] for _, t in rounds)
            ratio = statistics.median(o[what] / t[what] for o, t in rounds)
            row += f"{ours:{10 - 2 * what}.{digits}f}{torchs:8.{digits}f}{ratio:7.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
