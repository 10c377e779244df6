#!/usr/bin/env python3
"""A pipeline on unequal workers (CPU quotas set by the operating system), in one run:

  balanced   cuts where Bimetal puts them, by what it measures, with each schedule
  equal      the same number of blocks per stage, 1F1B

and the bound (m - 1) * max t + sum t, t being what each stage computes for a micro-batch by the run's own report.
Zero-bubble's step beside 1F1B's is printed beside what its formula says (ZB-H1 of Qi et al., ICLR 2024, table 2: where forward and both
parts of backward take a third each, (m + (p - 1) / 3) / (m + p - 1) with p stages): few micro-batches and stages alike show it best, as by

    bench/pipeline.py --case alike --micro-batches 3 --batch 6

A GPT on random tokens, float32. Prints the median step of each, beside one another, and the ratios.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

import job_file
import machine
import ranks
from made_tokens import made_tokens

CASES = {"1 : 1/3": [1.0, 1 / 3], "1 : 1/2 : 1/4": [1.0, 0.5, 0.25], "alike": [0.6, 0.6, 0.6]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--schedules", default="1f1b,gpipe,zero_bubble")
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def write_job(folder, args):
    return job_file.write_job(
        folder / "job.toml",
        model={"name": "gpt2", "layers": args.layers, "width": args.width, "heads": 4, "context": args.block},
        data=job_file.tokens(folder, args.block),
        train={"steps": args.steps, "epochs": 1000, "global_batch": args.batch, "evaluate": False},
        mesh={"micro_batches": args.micro_batches})


def run(job, folder, speeds, period_ms, settings):
    """The report of one job whose stages have these speeds."""
    report = folder / "report.json"
    command = [ranks.BIMETAL, "train", str(job), *["--worker", "cpu:threads=1"] * len(speeds), "--report", str(report)]
    for setting in [f"mesh.stages={len(speeds)}", *settings]:
        command += ["--set", setting]
    ranks.run_ranks([command] * len(speeds), speeds, period_ms)
    return json.loads(report.read_text())


def median_step(report):
    ends = [point["elapsed_s"] for point in report["history"]]
    return statistics.median(after - before for before, after in zip(ends, ends[1:]))


def bound(report, micro_batches):
    """The bound by the stages' computing seconds, the update included."""
    each = [worker["compute_s"] / report["steps"] / micro_batches for worker in report["workers"]]
    return (micro_batches - 1) * max(each) + sum(each)


def equal_cuts(layers, stages):
    """The embedding goes with the first blocks, the head with the last."""
    return [1 + layers * stage // stages for stage in range(1, stages)]


def measure(job, folder, speeds, args):
    steps = {}
    equal = run(job, folder, speeds, args.period_ms, [f"mesh.cuts={equal_cuts(args.layers, len(speeds))}"])
    steps["equal cut, 1f1b"] = median_step(equal)
    for schedule in args.schedules.split(","):
        report = run(job, folder, speeds, args.period_ms, [f"mesh.schedule={schedule}"])
        steps[f"balanced, {schedule}"] = median_step(report)
        if schedule == "1f1b":
            steps["bound, 1f1b"] = bound(report, args.micro_batches)
    return steps


def main():
    args = arguments()
    figures = {"machine": machine.describe(ranks.BIMETAL), "cases": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made_tokens(ranks.BIMETAL, folder, 400_000)
        job = write_job(folder, args)
        for case in args.case or ("1 : 1/3", "1 : 1/2 : 1/4"):
            passes = [measure(job, folder, CASES[case], args) for _ in range(args.passes)]
            steps = {what: statistics.median(one[what] for one in passes) for what in passes[0]}

            def ratio(over, under, passes=passes):
                return statistics.median(one[over] / one[under] for one in passes if over in one)

            ratios = {"step / bound": ratio("balanced, 1f1b", "bound, 1f1b"),
                      "equal cut / balanced": ratio("equal cut, 1f1b", "balanced, 1f1b")}
            if "balanced, zero_bubble" in steps:
                ratios["zero_bubble / 1f1b"] = ratio("balanced, zero_bubble", "balanced, 1f1b")
                m, others = args.micro_batches, len(CASES[case]) - 1
                ratios["  by its formula"] = (m + others / 3) / (m + others)
            figures["cases"][case] = {"seconds": steps, "ratios": ratios}
            print(case)
            for what, value in {**steps, **ratios}.items():
                print(f"  {what:24} {value:.3f}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
