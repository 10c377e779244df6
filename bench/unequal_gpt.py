#!/usr/bin/env python3
"""A small GPT on unequal workers (CPU quotas set by the operating system), in one run: what each worker trains alone,
one after the other and all at the same time without a word between them, and what they train together in one job.

Prints the medians of tokens/s and the job's ratio to both sums.
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


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0, 0.5], help="parts of a core for the workers")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="blocks in a step")
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement, about")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--at-least", type=float, help="exit with 1 unless together ÷ Σ alone reaches this")
    return parser.parse_args()


def write_job(folder, args):
    made_tokens(ranks.BIMETAL, folder, 1_000_000)
    return job_file.write_job(
        folder / "job.toml",
        model={"name": "gpt2", "layers": args.layers, "width": args.width, "heads": 4, "context": args.block},
        data=job_file.tokens(folder, args.block), train={"optimizer": "adamw", "learning_rate": 1e-4})


def measure(job, args, rate):
    """tokens/s of each way; `rate`: blocks that a whole core does in a second, about."""
    def steps(batch, speed):
        return max(6, int(args.seconds * rate * speed / batch))

    def tokens(report):
        return report["samples_per_s"]  # of a language model it counts tokens

    total = sum(args.speeds)
    parts = [max(1, round(args.batch * speed / total)) for speed in args.speeds]
    alone = [tokens(ranks.bimetal_reports(part, steps(part, speed), [speed], args.period_ms, job=job)[0])
             for part, speed in zip(parts, args.speeds)]
    at_once = ranks.bimetal_reports(parts, [steps(part, speed) for part, speed in zip(parts, args.speeds)], args.speeds,
                                    args.period_ms, separate=True, job=job)
    job_of_all = ranks.bimetal_reports(args.batch, steps(args.batch, total), args.speeds, args.period_ms, job=job)[0]
    return {"alone": sum(alone), "alone, at once": sum(map(tokens, at_once)), "together": tokens(job_of_all)}


def main():
    args = arguments()
    print(json.dumps(machine.describe(ranks.BIMETAL)))
    with tempfile.TemporaryDirectory() as name:
        job = write_job(pathlib.Path(name), args)
        rate = ranks.bimetal_reports(8, 6, [1.0], args.period_ms, job=job)[0]["samples_per_s"] / args.block
        passes = [measure(job, args, rate) for _ in range(args.passes)]
    for way in passes[0]:
        print(f"{way:16} {statistics.median(one[way] for one in passes):8.0f} tokens/s")
    ratios = {way: [one["together"] / one[way] for one in passes] for way in ("alone", "alone, at once")}
    for way, each in ratios.items():
        print(f"together ÷ {way}: {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})")
    if args.at_least and statistics.median(ratios["alone"]) < args.at_least:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
