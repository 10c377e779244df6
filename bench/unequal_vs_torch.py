#!/usr/bin/env python3
"""Efficiency on unequal workers: Bimetal beside torch DDP, in one run.

For each set of speeds (CPU quotas set by the operating system) it measures, in turn and repeatedly:
  alone        each worker by itself
  together     all workers at the same time, without any communication
  balanced     one Bimetal job
  torch equal  DDP on Gloo, the same batch for everyone
  torch hand   DDP on Gloo, batches in proportion to the speeds, set by hand
and prints the medians of images/s and their ratios to Σ alone and to Σ together, where each
side is divided by its own kind's figures (torch by torch's, Bimetal by Bimetal's).

It also prints the bound that the machine sets to any job whose workers wait for each other once
a step: a step takes as long as its slowest worker. Taken from the times of the steps of "together".
"""

import argparse
import json
import statistics
import sys

import machine
import ranks

NO_RATES = ("shares", "own efficiency figure", "lock-step bound")
CASES = {"1 : 1/4": [1.0, 0.25], "0.8 : 0.4 : 0.2": [0.8, 0.4, 0.2]}


def shares_by_hand(speeds, batch):
    return [round(batch * s / sum(speeds)) for s in speeds]


def lock_step_bound(reports):
    """The fraction of Σ together that remains if each step waits for its slowest worker and nothing else costs time.

    The shares are taken to be perfect: each worker's steps are divided by their mean. Left is how
    much they vary. reports: of jobs of one rank each, whose histories hold every step.
    """
    relative = []
    for report in reports:
        ends = [point["elapsed_s"] for point in report["history"]]
        times = [after - before for before, after in zip(ends, ends[1:])]
        mean = statistics.fmean(times)
        relative.append([time / mean for time in times])
    return 1 / statistics.fmean(map(max, zip(*relative)))


def measure_once(speeds, batch, seconds, period_ms, with_torch):
    """One pass over every variant; returns images/s by variant."""
    result = {}
    probe = ranks.bimetal_reports(batch, 6, [1.0], period_ms)[0]["samples_per_s"]

    def steps_for(b, speed):
        return max(8, int(seconds * probe * speed / b))

    alone = [ranks.bimetal_reports(batch, steps_for(batch, s), [s], period_ms)[0]["samples_per_s"]
             for s in speeds]
    result["alone"] = sum(alone)
    hand = shares_by_hand(speeds, batch)
    together = ranks.bimetal_reports(hand, [steps_for(b, s) for b, s in zip(hand, speeds)], speeds,
                                     period_ms, separate=True)
    result["together"] = sum(r["samples_per_s"] for r in together)
    result["lock-step bound"] = lock_step_bound(together)
    steps = steps_for(batch, sum(speeds))
    balanced = ranks.bimetal_reports(batch, steps, speeds, period_ms)[0]
    result["balanced"] = balanced["samples_per_s"]
    result["shares"] = [w["share"] for w in balanced["workers"]]
    result["own efficiency figure"] = balanced["efficiency"]

    if not with_torch:
        return result
    result["torch alone"] = sum(ranks.torch_rates([batch], [s], seconds, period_ms)[0] for s in speeds)
    result["torch together"] = sum(ranks.torch_rates(hand, speeds, seconds, period_ms, separate=True))
    equal = [batch // len(speeds)] * len(speeds)
    result["torch equal"] = sum(ranks.torch_rates(equal, speeds, seconds, period_ms))
    result["torch hand"] = sum(ranks.torch_rates(hand, speeds, seconds, period_ms))
    return result


def summarise(passes):
    def ratio(over, under):
        return statistics.median(p[over] / p[under] for p in passes)

    def median(key):
        return statistics.median(p[key] for p in passes)

    rates = {k: median(k) for k in passes[0] if k not in NO_RATES}
    summary = {"images_per_s": rates, "shares": passes[-1]["shares"],
               "own_efficiency": median("own efficiency figure"), "lock_step_bound": median("lock-step bound"),
               "of_bound": statistics.median(p["balanced"] / p["together"] / p["lock-step bound"] for p in passes),
               "of_alone": {"balanced": ratio("balanced", "alone")},
               "of_together": {"balanced": ratio("balanced", "together")}}
    if "torch hand" in rates:
        for way in ("torch hand", "torch equal"):
            summary["of_alone"][way] = ratio(way, "torch alone")
            summary["of_together"][way] = ratio(way, "torch together")
        summary["balanced_over_torch_hand"] = ratio("balanced", "torch hand")
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024, help="global batch (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=12, help="of each measurement")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="measure Bimetal alone: half the time")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()

    figures = {"machine": machine.describe(ranks.BIMETAL), "batch": args.batch,
               "period_ms": args.period_ms, "passes": args.passes, "cases": {}}
    print(json.dumps(figures["machine"]))
    for name in args.case or CASES:
        passes = []
        for index in range(args.passes):
            print(f"{name}: pass {index + 1} of {args.passes}", file=sys.stderr, flush=True)
            passes.append(measure_once(CASES[name], args.batch, args.seconds, args.period_ms, args.torch))
            print("  " + ", ".join(f"{k} {v:.0f}" for k, v in passes[-1].items() if k not in NO_RATES),
                  f"  bound {passes[-1]['lock-step bound']:.3f}", file=sys.stderr)
        summary = figures["cases"][name] = summarise(passes)
        print(f"\nworkers {name}   (medians of {args.passes} passes, global batch {args.batch})")
        print(f"  {'':14}{'images/s':>10}{'÷ Σ alone':>12}{'÷ together':>12}")
        for row in summary["of_alone"]:
            print(f"  {row:14}{summary['images_per_s'][row]:10.0f}{summary['of_alone'][row]:12.3f}"
                  f"{summary['of_together'][row]:12.3f}")
        if args.torch:
            print(f"  balanced ÷ torch by hand: {summary['balanced_over_torch_hand']:.2f}")
        print(f"  bound for workers that wait for each other every step: {summary['lock_step_bound']:.3f} of together"
              f" (balanced ÷ bound: {summary['of_bound']:.3f})")
        print(f"  the jobs' own figure of efficiency: {summary['own_efficiency']:.3f}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
