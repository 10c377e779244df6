#!/usr/bin/env python3
"""The planner's forecasts for models that are cut, have their tensors in parts or are kept in shards, beside measured
runs: in one run, for some clusters made of CPU quotas, `bimetal plan` names its best few ways to train a GPT, and each
is trained with the keys that it names.

Prints seconds a step (forecast, median measured, their ratio) and the peak memory of the fullest worker (likewise), the medians of
all ratios, and how far the first choice was behind the fastest of those that were run.
"""

import argparse
import json
import pathlib
import re
import statistics
import tempfile

import job_file
import machine
import pipeline
import ranks
from made_tokens import made_tokens

CLUSTERS = {"1 : 1": [0.9, 0.9], "1 : 1/3": [1.0, 1 / 3], "1 : 1/2 : 1/4": [1.0, 0.5, 0.25]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", choices=list(CLUSTERS), action="append")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--batches", default="8,32", help="samples in a step: each is planned and trained")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def write_job(folder, args, batch):
    return job_file.write_job(
        folder / f"job-{batch}.toml",
        model={"name": "gpt2", "layers": args.layers, "width": args.width, "heads": 4, "context": args.block},
        data=job_file.tokens(folder, args.block),
        train={"steps": args.steps, "epochs": 1000, "global_batch": batch, "evaluate": False}, checkpoint={"dir": ""})


def planned(job, speeds, period_ms):
    command = [ranks.BIMETAL, "plan", str(job), "--json"] + ["--worker", "cpu:threads=1"] * len(speeds)
    plan = json.loads(ranks.run_ranks([command] * len(speeds), speeds, period_ms)[0])
    programs = [rank["program_bytes"] for rank in plan["memory"]["ranks"]]
    return plan["mesh"]["best"], programs


def settings_of(keys):
    """'mesh.cuts=[2, 3], mesh.stages=2' apart: the commas between keys alone."""
    return re.split(r", (?=[a-z_]+\.[a-z_]+=)", keys)


def trained(job, way, speeds, period_ms):
    """Seconds a step and each worker's peak, with the plan's devices in the order that it has them in. Without stages, those that
    have a replica's tensors in parts are one worker of the report, of which it has no memory."""
    order = [device["device"] for stage in way["stages"] for device in stage["devices"]]
    with tempfile.TemporaryDirectory() as name:
        report = pathlib.Path(name, "report.json")
        command = [ranks.BIMETAL, "train", str(job), *["--worker", "cpu:threads=1"] * len(order), "--report", str(report)]
        for setting in settings_of(way["keys"]):
            command += ["--set", setting]
        ranks.run_ranks([command] * len(order), [speeds[device] for device in order], period_ms)
        found = json.loads(report.read_text())
    return pipeline.median_step(found), [worker["memory"]["peak_bytes"] for worker in found["workers"] if "memory" in worker]


def forecast_and_run(job, speeds, period_ms):
    ways, programs = planned(job, speeds, period_ms)
    for way in ways:
        devices = [device for stage in way["stages"] for device in stage["devices"]]
        peaks = [device["peak_bytes"] + programs[device["device"]] for device in devices]
        step, measured = trained(job, way, speeds, period_ms)
        yield {"title": way["title"], "forecast_s": way["step_s"], "measured_s": step,
               "forecast_bytes": peaks, "measured_bytes": measured}


def line(way):
    way["ratio_s"] = way["forecast_s"] / way["measured_s"]
    text = f"  {way['title']:48} {way['forecast_s']:8.3f} {way['measured_s']:8.3f} {way['ratio_s']:6.2f}"
    if not way["measured_bytes"]:
        return text
    fullest = max(range(len(way["measured_bytes"])), key=way["measured_bytes"].__getitem__)
    way["ratio_bytes"] = way["forecast_bytes"][fullest] / way["measured_bytes"][fullest]
    return (f"{text}   {way['forecast_bytes'][fullest] / 2**20:7.0f} {way['measured_bytes'][fullest] / 2**20:7.0f} "
            f"{way['ratio_bytes']:6.2f}")


def main():
    args = arguments()
    figures = {"machine": machine.describe(ranks.BIMETAL), "cases": []}
    print(json.dumps(figures["machine"]))
    print(f"  {'':48} {'s: plan':>8} {'run':>8} {'ratio':>6}   {'MiB':>7} {'run':>7} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made_tokens(ranks.BIMETAL, folder)
        for cluster in args.cluster or CLUSTERS:
            for batch in map(int, args.batches.split(",")):
                print(f"{cluster}, {batch} samples a step", flush=True)
                ways = []
                for way in forecast_and_run(write_job(folder, args, batch), CLUSTERS[cluster], args.period_ms):
                    ways.append(way)
                    print(line(way), flush=True)
                behind = ways[0]["measured_s"] / min(way["measured_s"] for way in ways)
                figures["cases"].append({"cluster": cluster, "batch": batch, "ways": ways, "behind": behind})
                print(f"  the first choice took {behind:.2f} times as long as the fastest of these", flush=True)
    for what in ("ratio_s", "ratio_bytes"):
        ratios = [way[what] for case in figures["cases"] for way in case["ways"] if what in way]
        off = statistics.median(abs(ratio - 1) for ratio in ratios)
        print(f"{what}: median {statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}), off by {off:.3f} in the "
              f"median, {len(ratios)} configurations")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
