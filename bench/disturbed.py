#!/usr/bin/env python3
"""The cost of bursts of competing processes: balanced shares beside equal ones and a fixed optimum.

Two workers at 1 : --speed (the second one emulated, as in the demo, or with --quota held to that part of a core by the
operating system) train together while other processes compute in bursts: --processes at a time for --burst seconds (drawn
between the two), with --pause seconds between them. With --apart each worker has a core of its own, and a burst is on one
of these two, as where a job runs on two machines and somebody else uses one of them for a while; without it the workers share
all cores with the bursts, and a second worker then takes from the first what the bursts leave. Each of --runs runs goes
through the ways in turn:

    alone     the faster worker by itself
    balanced  shares that follow speed
    fixed     shares set once, in proportion to what the workers did alone and undisturbed
    equal     the same share for both

under one and the same sequence of bursts, begun anew for each way. A way's samples are counted in the same --seconds of
that sequence, after --start seconds in which its processes start: two ways that last unlike long, or start unlike fast,
would meet other bursts. Printed are the images/s of every way and run, their ratio to the faster worker alone in the
same run, and in how many runs balanced reached --at-least times that; efficiency is the balanced job's own, against
what both devices could do in the very same seconds, so that nothing else that happens on the machine between two ways
is in it. It wants a machine with at least two cores and nothing else to do; where others are busy, too, the figures say
little.

    .venv/bin/python bench/disturbed.py --apart --runs 20 --at-least 1.1        about 20 × 4 × 65 s
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import machine
import ranks

SPIN = "import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
WAYS = ("alone", "balanced", "fixed", "equal")
ROOM = 1.3  # steps beyond those that the undisturbed rates would do in time: a machine may be faster later


class Bursts:
    """Context manager: competing processes in bursts until it ends; equal seeds, equal bursts."""

    def __init__(self, args, seed):
        self._args, self._random = args, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds = 0.0  # of bursts so far

    def _run(self):
        while not self._stop.wait(self._random.uniform(*self._args.pause)):
            seconds = self._random.uniform(*self._args.burst)
            code = SPIN.format(seconds=seconds)
            place = on_core(self._random.randrange(2)) if self._args.apart else None
            began = time.monotonic()
            others = [subprocess.Popen([sys.executable, "-c", code], preexec_fn=place)
                      for _ in range(self._args.processes)]
            try:
                self._stop.wait(seconds)
            finally:
                for process in others:
                    process.kill()
                    process.wait()
            self.seconds += time.monotonic() - began

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def on_core(number):
    core = sorted(os.sched_getaffinity(0))[number]
    return lambda: os.sched_setaffinity(0, {core})


def report_of(args, workers, balance, steps):
    """The report of a job of these emulated workers."""
    settings = [f"train.global_batch={args.batch}", f"train.steps={steps}", "train.epochs=100000",
                "train.evaluate=false", "checkpoint.dir=''", f"parallel.balance={json.dumps(balance)}"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [ranks.BIMETAL, "train", str(ranks.ROOT / "examples" / "fashion_mnist.toml"), "--report", str(report)]
        for worker in workers:
            command += ["--worker", worker]
        for setting in settings:
            command += ["--set", setting]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ranks.TIMEOUT_S)
        except subprocess.TimeoutExpired:
            sys.exit(f"{' '.join(command)} did not end within {ranks.TIMEOUT_S} s")
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return json.loads(report.read_text())


def job(args, speeds, balance, steps):
    if args.quota or args.apart:
        return ranks.bimetal_reports(args.batch, steps, speeds, args.period_ms, balance,
                                     places=[on_core(rank) for rank in range(len(speeds))] if args.apart else None)[0]
    workers = ["cpu:threads=1" + ("" if speed == 1 else f",speed={speed:g}") for speed in speeds]
    return report_of(args, workers, balance, steps)


def undisturbed_rates(args):
    """images/s of each worker by itself, nothing in its way."""
    rates = []
    for speed in (1.0, args.speed):
        first = job(args, [speed], "equal", 8)["samples_per_s"]
        rates.append(job(args, [speed], "equal", steps_in(args, first, 8))["samples_per_s"])
    return rates


def steps_in(args, rate, seconds):
    return max(10, int(seconds * rate / args.batch))


def images_in(report, batch, begin, end):
    """How many images were trained between two times of the report's own clock, steps in part included."""
    def until(when):
        step, at = 0, 0.0
        for point in report["history"]:
            if point["elapsed_s"] >= when:
                return step + (point["step"] - step) * (when - at) / (point["elapsed_s"] - at)
            step, at = point["step"], point["elapsed_s"]
        sys.exit(f"a job ended after {at:.1f} s of training, before the {when:.1f} s that it is measured for")
    return batch * (until(end) - until(begin))


def rate_in_window(args, way, report, trained_from):
    """images/s in the window; trained_from: when training began, in seconds of the bursts' clock."""
    begin = args.start - trained_from
    if begin < 0:
        sys.exit(f"{way} began to train after {trained_from:.1f} s: --start should be longer")
    return images_in(report, args.batch, begin, begin + args.seconds) / args.seconds


def one_run(args, rates, seed):
    """images/s in the window, and the report, by way."""
    speeds = [1.0, args.speed]
    # An equal split runs at twice the slower one's pace.
    ways = {"alone": (speeds[:1], "equal", rates[0]), "balanced": (speeds, "auto", sum(rates)),
            "fixed": (speeds, [round(rate) for rate in rates], sum(rates)),
            "equal": (speeds, "equal", 2 * min(rates))}
    result = {}
    for way in args.ways:
        ranks_of_way, balance, expected = ways[way]
        disturbed = contextlib.nullcontext() if args.undisturbed else Bursts(args, seed)
        began = time.monotonic()
        with disturbed as bursts:
            # It has to outlast the window; how long it takes to end is in `trained_from`, too, but short.
            report = job(args, ranks_of_way, balance, steps_in(args, ROOM * expected, args.start + args.seconds))
            trained_from = time.monotonic() - began - report["elapsed_s"]
        result[way] = {"images_per_s": rate_in_window(args, way, report, trained_from),
                       "elapsed_s": report["elapsed_s"], "efficiency": report["efficiency"],
                       "burst_s": bursts.seconds if bursts else 0.0,
                       "steps_without_rank_1": sum(step["batch"][-1] == 0 for step in report["balance"]["steps"])}
        if args.keep and way == "balanced":
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"balanced-{seed}.json").write_text(json.dumps(report))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="for which each way is measured")
    parser.add_argument("--start", type=float, default=6, help="seconds before these, for starting")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS, help="which, alone and balanced among them")
    parser.add_argument("--speed", type=float, default=0.25, help="of the second worker")
    parser.add_argument("--quota", action="store_true", help="by a CPU quota instead of emulation")
    parser.add_argument("--apart", action="store_true",
                        help="each worker on a core of its own (with a quota there), each burst on one of the two")
    parser.add_argument("--period-ms", type=float, default=10, help="of the quota")
    parser.add_argument("--batch", type=int, default=256, help="global batch (default: the demo's)")
    parser.add_argument("--burst", type=float, nargs=2, default=(1, 10), metavar=("LEAST", "MOST"), help="seconds")
    parser.add_argument("--pause", type=float, nargs=2, default=(4, 12), metavar=("LEAST", "MOST"),
                        help="seconds between bursts")
    parser.add_argument("--processes", type=int, default=1, help="that compete in a burst")
    parser.add_argument("--undisturbed", action="store_true", help="no bursts: what the ways do in peace")
    parser.add_argument("--seed", type=int, default=1, help="of the first run's bursts")
    parser.add_argument("--at-least", type=float, help="exit with 1 unless balanced ÷ alone reaches this in every run")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the balanced runs' reports (replay_balance.py)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    figures = {"machine": machine.describe(ranks.BIMETAL), "arguments": {k: str(v) for k, v in vars(args).items()}}
    print(json.dumps(figures["machine"]))
    rates = figures["undisturbed_images_per_s"] = undisturbed_rates(args)
    print(f"undisturbed, alone: {rates[0]:.0f} and {rates[1]:.0f} images/s; ratio to the faster one below", flush=True)
    print(f"{'run':>4}" + "".join(f"{way:>18}" for way in args.ways) + f"{'efficiency':>12}{'without rank 1':>18}")
    figures["runs"] = []
    for number in range(args.runs):
        run = one_run(args, rates, args.seed + number)
        figures["runs"].append(run)
        alone = run["alone"]["images_per_s"]
        print(f"{number + 1:4}" + "".join(f"{run[way]['images_per_s']:9.0f} ({run[way]['images_per_s'] / alone:.2f} ×)"
                                          for way in args.ways)
              + f"{run['balanced']['efficiency']:12.2f}{run['balanced']['steps_without_rank_1']:12} steps", flush=True)
        if args.json:
            args.json.write_text(json.dumps(figures, indent=1))
    ratios = [run["balanced"]["images_per_s"] / run["alone"]["images_per_s"] for run in figures["runs"]]
    print(f"balanced ÷ the faster alone: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}")
    if args.at_least is not None:
        reached = sum(ratio >= args.at_least for ratio in ratios)
        print(f"at least {args.at_least:g} in {reached} of {len(ratios)} runs")
        if reached < len(ratios):
            sys.exit(1)


if __name__ == "__main__":
    main()
