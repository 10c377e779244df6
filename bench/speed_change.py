#!/usr/bin/env python3
"""How soon the shares follow when a worker's speed changes in the middle of a run.

Two workers start at 1 and --before of a core. Once the job is under way the second one's CPU limit
is moved to --after by the operating system. Prints the shares step by step around the change, and
after how many steps the second worker's share first lies within --within of what it settles at.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import machine
import ranks
from cpu_limit import CpuLimit

STEP = re.compile(r"step (\d+)/")
TAIL = 10  # steps at the end over which the settled share is taken


def start(rank, limit, folder, args):
    settings = [f"train.global_batch={args.batch}", f"train.steps={args.steps}", "train.epochs=1000",
                "train.evaluate=false", "checkpoint.dir=''"]
    command = [ranks.BIMETAL, "train", str(ranks.ROOT / "examples" / "fashion_mnist.toml"),
               "--worker", "cpu:threads=1", "--worker", "cpu:threads=1",
               "--report", str(pathlib.Path(folder, "report.json"))]
    for setting in settings:
        command += ["--set", setting]
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                        "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(args.port), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, preexec_fn=limit.enter)


def run(args):
    """Returns the report and the step after which the speed was changed."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        limits = [stack.enter_context(CpuLimit(speed)) for speed in (1.0, args.before)]
        processes = [start(rank, limit, folder, args) for rank, limit in enumerate(limits)]
        try:
            for limit, process in zip(limits, processes):
                limit.watch(process.pid)
            changed_at, output = None, []
            for line in processes[0].stdout:
                output.append(line)
                match = STEP.search(line)
                if match and changed_at is None and int(match[1]) >= args.change_after:
                    limits[1].change(args.after)
                    changed_at = int(match[1])
            output.append(processes[1].communicate(timeout=60)[0])
            if any(process.wait(timeout=60) != 0 for process in processes) or changed_at is None:
                sys.exit("the job failed:\n" + "".join(output))
            return json.loads(pathlib.Path(folder, "report.json").read_text()), changed_at
        finally:
            for process in processes:
                process.kill()
                process.wait()


def steps_to_follow(shares, changed_at, within):
    """Steps from the change to the first share within `within` (relative) of the settled one."""
    settled = statistics.median(shares[-TAIL:])
    for step, share in enumerate(shares[changed_at:]):
        if abs(share - settled) <= within * settled:
            return step, settled
    return len(shares) - changed_at, settled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=float, default=0.75)
    parser.add_argument("--after", type=float, default=0.25)
    parser.add_argument("--within", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--change-after", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-most", type=int, help="exit with 1 if the median needs more steps")
    args = parser.parse_args()
    print(json.dumps(machine.describe(ranks.BIMETAL)))
    needed = []
    for _ in range(args.rounds):
        args.port = ranks.free_port()
        report, changed_at = run(args)
        shares = [step["shares"][1] for step in report["history"]]
        steps, settled = steps_to_follow(shares, changed_at, args.within)
        needed.append(steps)
        print(f"speed {args.before} → {args.after} after step {changed_at}: share of {shares[changed_at - 1]} "
              f"moves to {settled:g} within {steps} steps; from the change on: {shares[changed_at:]}", flush=True)
    median = statistics.median(needed)
    print(f"median of {args.rounds} rounds: {median:g} steps")
    if args.at_most is not None and median > args.at_most:
        sys.exit(1)


if __name__ == "__main__":
    main()
