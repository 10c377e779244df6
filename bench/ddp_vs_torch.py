#!/usr/bin/env python3
"""Two equal workers, one thread each: Bimetal beside torch DDP on Gloo, in turn, in one run.

The same CNN, data set, global batch and optimizer. Prints the ratio of images/s for each round and
its median; above 1 Bimetal is faster.
"""

import argparse
import json
import statistics
import sys

import machine
import ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append", help="global batch (default: 64, 256, 1024)")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()

    figures = {"machine": machine.describe(ranks.BIMETAL), "rounds": args.rounds, "batches": {}}
    print(json.dumps(figures["machine"]))
    print(f"{'batch':>6}{'Bimetal':>10}{'torch':>10}{'ratio':>8}   (images/s, medians of {args.rounds} rounds)")
    for batch in args.batch or [64, 256, 1024]:
        rounds = []
        for _ in range(args.rounds):
            theirs = sum(ranks.torch_rates([batch // 2] * 2, [1, 1], args.seconds, 10))
            steps = max(10, int(args.seconds * theirs / batch))
            # Equal shares by decree: the comparison is of the machinery, not of the balancing.
            ours = ranks.bimetal_reports(batch, steps, [1, 1], 10, balance="equal")[0]["samples_per_s"]
            rounds.append((ours, theirs))
            print(f"  {batch}: {ours:.0f} against {theirs:.0f}", file=sys.stderr, flush=True)
        row = {"bimetal": statistics.median(o for o, _ in rounds),
               "torch": statistics.median(t for _, t in rounds),
               "ratio": statistics.median(o / t for o, t in rounds)}
        figures["batches"][batch] = row
        print(f"{batch:6}{row['bimetal']:10.0f}{row['torch']:10.0f}{row['ratio']:8.2f}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
