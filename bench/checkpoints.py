"""The cost of checkpoints that are written while training goes on: a job with one every few steps beside one with none,
in turn.

One worker of one thread trains an MLP with Adam. Counted is the whole command, so that nothing is hidden outside of steps; both
save once at the end. With --beside, another build's program does the first job, too. Then, by the monitors of the same
jobs with checkpoints: how much longer the step behind the begin of a save takes than steps beside which nothing is
written.

    .venv/bin/python bench/checkpoints.py --beside OTHER/build/bimetal
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from job_file import hidden_for, write_job
from machine import describe
from ranks import BIMETAL, ROOT, free_port

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import write_dataset  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=10e6)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", help="the program of another build")
    options = parser.parse_args()
    print(describe(BIMETAL))
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        write_dataset(folder / "data", train=100 * options.batch)
        sides = {"no checkpoint": (BIMETAL, 0), f"every {options.every} steps": (BIMETAL, options.every)}
        if options.beside:
            sides[f"every {options.every} steps, {options.beside}"] = (options.beside, options.every)
        seconds = {name: [] for name in sides}
        longer = {name: [] for name, (_, every) in sides.items() if every}
        for _ in range(options.rounds):
            for name, (program, every) in sides.items():
                seconds[name].append(measure(options, folder, program, every))
                if every:
                    longer[name].append(stop_of(options, folder, program, every))
        alone = statistics.median(seconds["no checkpoint"])
        saves = options.steps // options.every - 1
        for name, times in seconds.items():
            median = statistics.median(times)
            print(f"{name:40} {median:7.2f} s   {median / alone:5.2f} x   {(median - alone) / saves:6.3f} s for each of {saves}")
        for name, parts in longer.items():
            print(f"{name:40} a save makes its step {100 * statistics.median(parts):.1f} % longer "
                  f"({100 * min(parts):.1f} to {100 * max(parts):.1f} %)")
    finally:
        shutil.rmtree(folder)


def job_of(options, folder, every):
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return write_job(folder / "job.toml", model={"name": "mlp", "hidden": hidden_for(options.parameters)}, data={"path": str(folder / "data")},
                    train={"epochs": 1_000_000, "global_batch": options.batch, "optimizer": "adam", "learning_rate": 1e-4,
                           "evaluate": False, "steps": options.steps},
                    checkpoint={"dir": str(folder / "checkpoints"), "every_steps": every})


def train(options, folder, program, every, *more):
    return subprocess.Popen([program, "train", job_of(options, folder, every), "--worker", "cpu:threads=1", *more],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})


def measure(options, folder, program, every):
    begin = time.monotonic()
    if train(options, folder, program, every).wait() != 0:
        raise SystemExit(f"{program} has failed")
    return time.monotonic() - begin


def stop_of(options, folder, program, every):
    """The part of a step by which the median step that begins with a save is longer than the median of those before a
    save."""
    monitor, ends = f"127.0.0.1:{free_port()}", {}
    job = train(options, folder, program, every, "--monitor", monitor)
    while job.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{monitor}/status", timeout=5) as page:
            status = json.load(page)
            if status["step"]:
                ends.setdefault(status["step"], time.monotonic() - status["since_step_s"])
        time.sleep(0.005)
    if job.returncode != 0:
        raise SystemExit(f"{program} has failed")
    took = {step: end - ends[step - 1] for step, end in ends.items() if step - 1 in ends and step > every}
    saving = [seconds for step, seconds in took.items() if step % every == 1]
    quiet = [seconds for step, seconds in took.items() if step % every > every // 2 or step % every == 0]
    return statistics.median(saving) / statistics.median(quiet) - 1


if __name__ == "__main__":
    main()
