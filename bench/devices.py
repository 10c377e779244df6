#!/usr/bin/env python3
"""A GPT trained on the devices named, alone and together, in ways that `bimetal plan` is asked about first: seconds a step and the
fullest worker's memory, as planned and, of CPUs, as measured, and samples a second beside the first worker's alone.

    bench/devices.py --worker cuda:0 --worker cpu:threads=8

Rows whose workers or precision a device lacks say why they are missing. All are taken in one run, one after the other, which is
what makes their ratios worth something.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import job_file
import machine
import pipeline
import ranks
from made_tokens import made_tokens


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="append", required=True, help="two or more; the first is what others are set beside")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", action="append", help="rows whose title has this")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    if len(args.worker) < 2:
        parser.error("--worker is needed twice or more")
    return args


def rows(workers):
    """Title, workers and settings of each."""
    first, every = workers[:1], workers
    half = "train.precision=bfloat16"
    yield from ((f"{worker} alone", [worker], []) for worker in workers)
    yield "in bfloat16, alone", first, [half]
    yield "in float16, alone", first, ["train.precision=float16"]
    yield "recomputed, alone", first, ["train.recompute=all"]
    yield "states in the host's memory, alone", first, ["zero.level=2", "zero.offload_optimizer=host"]
    yield "together, balanced", every, []
    yield "together, alike", every, ["parallel.balance=equal"]
    yield "together, the first in bfloat16", [first[0] + (",", ":")[":" not in first[0]] + "precision=bfloat16", *every[1:]], []
    for level in (1, 2, 3):
        yield f"together, ZeRO {level}", every, [f"zero.level={level}"]
    yield "stages", every, [f"mesh.stages={len(every)}"]
    yield "stages, zero-bubble", every, [f"mesh.stages={len(every)}", "mesh.schedule=zero_bubble"]
    yield "tensors in parts, by speed", every, [f"mesh.tensor={len(every)}", "mesh.tensor_weights=speed"]
    yield "what is chosen", every, ["mesh=auto"]


def bimetal(command, job, workers, settings, *more):
    specs = [word for worker in workers for word in ("--worker", worker)]
    done = subprocess.run([ranks.BIMETAL, command, str(job), *specs, *(word for one in settings for word in ("--set", one)), *more],
                          capture_output=True, text=True, timeout=ranks.TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
    return done.stdout


def planned(job, workers, settings):
    """Seconds a step and bytes of the fullest worker; nothing where the plan has none."""
    plan = json.loads(bimetal("plan", job, workers, settings, "--json"))
    programs = [rank["program_bytes"] for rank in plan["memory"]["ranks"]]
    way = (plan.get("mesh") or {}).get("asked") or {}
    if not way.get("stages"):
        return way.get("step_s"), None
    peaks = [device["peak_bytes"] + programs[device["device"]] for stage in way["stages"] for device in stage["devices"]]
    return way["step_s"], max(peaks)


def measured(job, workers, settings, folder):
    report = folder / "report.json"
    bimetal("train", job, workers, settings, "--report", str(report))
    found = json.loads(report.read_text())
    # The report has no peak of an accelerator's own memory.
    of_cpus = all(worker["device"].startswith("cpu") for worker in found["workers"])
    peaks = [worker["memory"]["peak_bytes"] for worker in found["workers"] if of_cpus and "memory" in worker]
    return {"measured_s": pipeline.median_step(found), "measured_bytes": max(peaks, default=None),
            "shares": [round(worker["share"], 4) for worker in found["workers"]]}


def row(job, workers, settings, folder):
    try:
        seconds, peak = planned(job, workers, settings)
    except RuntimeError as why:  # the plan's refusal is told; the run is tried all the same
        print(f"    plan: {why}")
        seconds, peak = None, None
    return {"forecast_s": seconds, "forecast_bytes": peak, **measured(job, workers, settings, folder)}


def figure(value, scale=1.0, digits=3):
    return f"{value / scale:.{digits}f}" if value is not None else "–"


def main():
    args = arguments()
    figures = {"machine": machine.describe(ranks.BIMETAL), "rows": []}
    print(json.dumps(figures["machine"]))
    print(bimetal_devices())
    print(f"{'':44} {'s: plan':>8} {'run':>8} {'MiB: plan':>10} {'run':>7} {'samples/s':>10} {'× first':>8}  shares")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made_tokens(ranks.BIMETAL, folder, 2_000_000)
        job = job_file.write_job(
            folder / "job.toml", data=job_file.tokens(folder, args.block), checkpoint={"dir": ""},
            model={"name": "gpt2", "layers": args.layers, "width": args.width, "heads": args.heads, "context": args.block},
            train={"steps": args.steps, "epochs": 1000, "global_batch": args.batch, "micro_batch": args.micro_batch,
                   "evaluate": False, "optimizer": "adamw", "learning_rate": 1e-4})
        for title, workers, settings in rows(args.worker):
            if args.only and not any(part in title for part in args.only):
                continue
            try:
                figures["rows"].append({"title": title, **row(job, workers, settings, folder)})
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                print(f"{title:44} {why}", flush=True)
                continue
            last = figures["rows"][-1]
            rate = args.batch / last["measured_s"]
            alone = next((row["measured_s"] for row in figures["rows"] if row["title"] == f"{args.worker[0]} alone"), None)
            beside = alone and alone / last["measured_s"]
            print(f"{title:44} {figure(last['forecast_s']):>8} {figure(last['measured_s']):>8} "
                  f"{figure(last['forecast_bytes'], 2**20, 0):>10} {figure(last['measured_bytes'], 2**20, 0):>7} {rate:10.1f} "
                  f"{figure(beside, digits=2):>8}  {last['shares']}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")


def bimetal_devices():
    return subprocess.run([ranks.BIMETAL, "devices"], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
