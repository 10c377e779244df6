#!/usr/bin/env python3
"""The cost of a job's step by one build of `bimetal`, beside another build, in one run: for changes that may cost
nothing.

Both builds run each job as processes of their own, with one worker on one thread. In turn, --windows times each, one of
them goes on for --seconds and the other is stopped (SIGSTOP), so that both see the same machine. Counted are the
processor's nanoseconds of a step, by all threads of the job, which other work on the machine makes little longer, and
the seconds of the job's own clock. Printed are the medians and, as "ratio", before / now of each round's pair: 1 is as
fast, below 1 slower, with the quartiles of the rounds.

    .venv/bin/python bench/two_builds.py OLD/bimetal NEW/bimetal        about five minutes
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import job_file
import machine
from page import status, write_images


def jobs(folder):
    """Tables of job files, by name: steps of about half a millisecond, and 20."""
    images = {"path": str(folder / "data")}
    train = {"epochs": 1_000_000, "learning_rate": 1e-4, "evaluate": False}
    return {
        "mlp, SGD": {"model": {"name": "mlp", "hidden": 64}, "data": images, "train": train | {"global_batch": 32}},
        "cnn, AdamW, clipped": {"model": {"name": "cnn"}, "data": images,
                                "train": train | {"global_batch": 32, "optimizer": "adamw", "clip_norm": 1.0}},
    }


class Job:
    """Context manager: a build at work, unless it is stopped."""

    def __init__(self, program, job, folder):
        self._process = subprocess.Popen([program, "train", job, "--worker", "cpu:threads=1"], cwd=folder, text=True,
                                         stdout=subprocess.PIPE, start_new_session=True)

    def __enter__(self):
        for line in self._process.stdout:
            if found := re.search(r"monitor at (\S+);", line):
                self._address = found[1]
                break
        else:
            raise SystemExit("the job has ended")
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        while status(self._address)["step"] < 50:
            time.sleep(0.1)
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_):
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _processes(self):
        """The processes of its session: the command and its ranks."""
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int((path / "stat").read_text().rsplit(")", 1)[1].split()[3]) == self._process.pid:
                    yield path

    def _signal(self, number):
        for path in self._processes():
            os.kill(int(path.name), number)

    def _now(self):
        told = status(self._address)
        cpu = sum(int(task.read_text().split()[0]) for path in self._processes() for task in path.glob("task/*/schedstat"))
        return told["step"], told["elapsed_s"], cpu / 1e9

    def window(self, seconds):
        """Milliseconds of a step: of the processor, and of the job's clock."""
        self._signal(signal.SIGCONT)
        time.sleep(0.1)
        step, elapsed, cpu = self._now()
        time.sleep(seconds)
        later = self._now()
        self._signal(signal.SIGSTOP)
        steps = later[0] - step
        return 1e3 * (later[2] - cpu) / steps, 1e3 * (later[1] - elapsed) / steps


def compare(args, tables, folder):
    job = job_file.write_job(folder / "job.toml", **tables, checkpoint={"dir": ""}, monitor={"listen": "127.0.0.1:0"})
    with contextlib.ExitStack() as stack:
        before, now = (stack.enter_context(Job(program, job, folder)) for program in (args.before, args.now))
        rounds = []
        for number in range(args.windows):
            first, second = (now, before) if number % 2 else (before, now)
            pair = first.window(args.seconds), second.window(args.seconds)
            rounds.append(pair[::-1] if number % 2 else pair)
    result = {}
    for index, what in enumerate(("processor", "clock")):
        ratios = sorted(old[index] / new[index] for old, new in rounds)
        quarters = statistics.quantiles(ratios, n=4)
        result[what] = {"before_ms": round(statistics.median(old[index] for old, _ in rounds), 3),
                        "now_ms": round(statistics.median(new[index] for _, new in rounds), 3),
                        "ratio": round(quarters[1], 4), "quartiles": [round(quarters[0], 4), round(quarters[2], 4)]}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("now")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", default="", help="jobs whose name begins so")
    args = parser.parse_args()
    if args.windows < 2:
        parser.error("--windows: at least 2, or there are no quartiles")
    args.before, args.now = (str(pathlib.Path(program).resolve()) for program in (args.before, args.now))
    print(json.dumps(machine.describe(args.now)))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_images(folder / "data", 12_800)
        chosen = {title: tables for title, tables in jobs(folder).items() if title.startswith(args.only)}
        for title, tables in chosen.items():
            print(json.dumps({"job": title, **compare(args, tables, folder)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
