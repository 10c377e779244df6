#!/usr/bin/env python3
"""Shows what the balancer makes of the figures of a run that has ended.

    bench/replay_balance.py run.json

reads the report of `bimetal train --report run.json`, feeds this build's balancer with the probes and the figures of
every step that it holds (docs/report.md, "balance"), and prints a line wherever the shares that it decides change, beside
those of the run. The figures stay those of the shares that the run had: what other shares would have led to, nobody has
measured.
"""

import argparse
import json
import pathlib

from bimetal.library.shares import Balancer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    args = parser.parse_args()
    record = json.loads(args.report.read_text())["balance"]
    ranks = len(record["probes"])
    weights = record["steps"][0]["batch"] if record["policy"] == "fixed" else []
    balancer = Balancer(ranks, record["global_batch"], record["policy"], weights,
                           [(probe["alpha_s"], probe["beta_s"]) for probe in record["probes"]])
    print(f"shares by the probes: {balancer.shares}")
    nothing = [0] * ranks
    for number, step in enumerate(record["steps"], 1):
        moved = balancer.observe(step["batch"], step["compute_s"], step.get("shadow_batch", nothing),
                                 step.get("shadow_s", nothing), step.get("out_of_memory", [False] * ranks))
        if moved:
            times = ", ".join(f"{seconds:.3f}" for seconds in step["compute_s"])
            print(f"step {number}: the run had {step['batch']} ({times} s); now {balancer.shares}")
    if not record["complete"]:
        print("the report holds the run's first steps only")


if __name__ == "__main__":
    main()
