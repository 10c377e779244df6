#!/usr/bin/env python3
"""Draws shares and efficiency over a run from a report that `bimetal train --report` wrote."""

import argparse
import json

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", metavar="REPORT.json")
    parser.add_argument("picture", metavar="PICTURE.svg")
    options = parser.parse_args()
    with open(options.report, encoding="utf-8") as file:
        report = json.load(file)
    history, workers = report["history"], report["workers"]
    steps = [point["step"] for point in history]

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                         "svg.hashsalt": "bimetal"})
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 4.4), sharex=True, height_ratios=[3, 2])
    for worker in workers:
        share = [100 * p["shares"][worker["rank"]] / sum(p["shares"]) for p in history]
        top.step(steps, share, where="post", label=f"rank {worker['rank']}: {worker['device']}")
    top.set_ylabel("share of each batch (%)")
    top.set_ylim(0, 100)
    top.legend(frameon=False, loc="center right")
    bottom.plot(steps, [p["efficiency"] for p in history], color="black", linewidth=1)
    bottom.set_ylim(0, 1.05)
    bottom.axhline(1, color="grey", linewidth=0.6, linestyle=":")
    bottom.set_ylabel("efficiency")
    bottom.set_xlabel(f"step   ({report['samples_per_s']:.0f} images/s over the run)")
    figure.tight_layout()
    figure.savefig(options.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
