"""What checkpoints cost that are written while training goes on: a job with one every few steps beside one with none, in turn.

One worker of one thread trains an MLP with Adam. Counted is the whole command, so that nothing is hidden outside of steps; both
save once at the end. With --beside, another build's program does the first job, too.

    .venv/bin/python bench/checkpoints.py --beside OTHER/build/bimetal
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from job_file import hidden_for, write_job
from machine import describe
from ranks import BIMETAL, ROOT

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
        for _ in range(options.rounds):
            for name, (program, every) in sides.items():
                seconds[name].append(measure(options, folder, program, every))
        alone = statistics.median(seconds["no checkpoint"])
        saves = options.steps // options.every - 1
        for name, times in seconds.items():
            median = statistics.median(times)
            print(f"{name:40} {median:7.2f} s   {median / alone:5.2f} x   {(median - alone) / saves:6.3f} s for each of {saves}")
    finally:
        shutil.rmtree(folder)


def measure(options, folder, program, every):
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    job = write_job(folder / "job.toml", model={"name": "mlp", "hidden": hidden_for(options.parameters)}, data={"path": str(folder / "data")},
                    train={"epochs": 1_000_000, "global_batch": options.batch, "optimizer": "adam", "learning_rate": 1e-4,
                           "evaluate": False, "steps": options.steps},
                    checkpoint={"dir": str(folder / "checkpoints"), "every_steps": every})
    begin = time.monotonic()
    subprocess.run([program, "train", job, "--worker", "cpu:threads=1"], check=True, capture_output=True,
                   env=os.environ | {"OMP_NUM_THREADS": "1"})
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
