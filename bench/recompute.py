"""The savings and the cost of recomputation, beside torch.utils.checkpoint in Python.

Each way takes its turn in each round: none, all and sqrt by task::Segments in C++ (recompute_step, built from bench/), none and
all in Python. Memory is by how much a step's peak rises above model and gradients, with an allocator that gives freed memory back;
time is measured in runs of its own, with the usual one.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from machine import describe
from ranks import BIMETAL, ROOT

HERE = pathlib.Path(__file__).resolve().parent
RETURNS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def measure(command, environment):
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600,
                         env=os.environ | environment).stdout.split()
    return float(out[0]), float(out[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "bench" / "recompute_step"))
    for name, value in (("layers", 12), ("width", 256), ("heads", 4), ("tokens", 256), ("batch", 8),
                        ("steps", 5), ("threads", 2), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    print(json.dumps(describe(BIMETAL)))
    sizes = [str(getattr(given, name)) for name in ("layers", "width", "heads", "tokens", "batch", "steps", "threads")]
    python = [sys.executable, str(HERE / "recompute_torch.py")]
    ways = {("C++", how): [given.program, how] for how in ("none", "all", "sqrt")}
    ways |= {("Python", how): [*python, how] for how in ("none", "all")}
    seconds = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, command in ways.items():
            seconds[way].append(measure([*command, *sizes], {})[0])
    bytes_of = {way: measure([*command, *sizes], RETURNS_MEMORY)[1] for way, command in ways.items()}
    print(f"{given.layers} blocks of width {given.width}, {given.batch} × {given.tokens} tokens, {given.threads} threads")
    for (language, how), times in seconds.items():
        none = (language, "none")
        saved = 1 - bytes_of[language, how] / bytes_of[none]
        longer = statistics.median(times) / statistics.median(seconds[none]) - 1
        print(f"{language:>6} {how:>4}: {statistics.median(times):7.3f} s a step ({100 * longer:+5.1f} %), "
              f"{bytes_of[language, how] / 2**20:7.1f} MiB of activations ({100 * saved:4.1f} % saved)")


if __name__ == "__main__":
    main()
