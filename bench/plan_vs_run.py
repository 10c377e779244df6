#!/usr/bin/env python3
"""The prediction of `bimetal plan` beside the rate of `bimetal train`, in one run.

Two workers under CPU quotas plan a job; then each way of the plan (each worker alone, equal and
balanced split) is trained for real. Prints predicted and measured images/s and their ratio, and
whether the way that the plan advised was the fastest one.
"""

import argparse
import json
import statistics

import machine
import ranks


def planned(batch, speeds, period_ms):
    """The plan's predictions, by name of the way."""
    command = [ranks.BIMETAL, "plan", str(ranks.ROOT / "examples" / "fashion_mnist.toml"), "--json",
               "--set", f"train.global_batch={batch}"]
    command += [part for _ in speeds for part in ("--worker", "cpu:threads=1")]
    outputs = ranks.run_ranks([command] * len(speeds), speeds, period_ms)
    plan = json.loads(outputs[0])
    ways = {name_of(p): p["samples_per_s"] for p in plan["predictions"]}
    return ways, name_of(plan["predictions"][plan["best"]])


def name_of(prediction):
    return f"rank {prediction['ranks'][0]} alone" if prediction["way"] == "alone" else prediction["way"]


def trained(way, batch, speeds, steps, period_ms):
    if way.startswith("rank "):
        chosen, balance = [speeds[int(way.split()[1])]], "auto"
    else:
        chosen, balance = speeds, "equal" if way == "equal" else "auto"
    return ranks.bimetal_reports(batch, steps, chosen, period_ms, balance)[0]["samples_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512, help="global batch (default: %(default)s)")
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0, 0.25], help="CPU quotas of the workers")
    parser.add_argument("--seconds", type=float, default=12, help="of each measurement, about")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    args = parser.parse_args()
    print(json.dumps(machine.describe(ranks.BIMETAL)))
    ratios, advised = {}, []
    for _ in range(args.passes):
        ways, best = planned(args.batch, args.speeds, args.period_ms)
        real = {way: trained(way, args.batch, args.speeds, max(8, int(args.seconds * rate / args.batch)), args.period_ms)
                for way, rate in ways.items()}
        advised.append(best == max(real, key=real.get))
        for way, rate in ways.items():
            ratios.setdefault(way, []).append((rate, real[way]))
    print(f"{'':16}{'predicted':>12}{'measured':>12}{'ratio':>8}   images/s, medians of {args.passes} passes")
    for way, pairs in ratios.items():
        print(f"{way:16}{statistics.median(p for p, _ in pairs):12.0f}{statistics.median(r for _, r in pairs):12.0f}"
              f"{statistics.median(p / r for p, r in pairs):8.2f}")
    print(f"the advised way was the fastest in {sum(advised)} of {len(advised)} passes")


if __name__ == "__main__":
    main()
