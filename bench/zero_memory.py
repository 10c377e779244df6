#!/usr/bin/env python3
"""What each rank of a job needs in memory at ZeRO's levels, with shards in the proportion given, beside level 0; and with
the optimizer's state in a file, or the parameters of level 3, too (--offload none,state,both). With --save each job ends with
a checkpoint, and one that goes on from it for a step is measured, too.

A language model on random tokens, AdamW, float32; the ranks compute alike. Prints each rank's peak of resident memory, less
what a rank of a job with a tiny model needs, beside what was planned, and tokens/s. The peak has activations, gathered parameters and buffers in it,
too. --memory limits what each rank may allocate.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import machine
from made_tokens import made_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "bimetal"))
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--shards", default="2,1", help="weights of the ranks' shards; as many ranks")
    parser.add_argument("--levels", default="0,1,2,3")
    parser.add_argument("--offload", default="none", help="what is on disk, above level 0: none, state, or both, the parameters of level 3, too")
    parser.add_argument("--folder", default="", help="for the files; default: the system's temporary one")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2, help="blocks in a step over all ranks")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--recompute", default="all")
    parser.add_argument("--save", action="store_true", help="a checkpoint at the end, and a job that goes on from it")
    parser.add_argument("--memory", default="", help="limit of each rank's allocations, as 9GB,5GB")
    return parser.parse_args()


def peaks_of(process, peaks):
    """Each rank's VmHWM, looked at until the job ends, as MiB by process id."""
    while process.poll() is None:
        for child in children(process.pid):
            try:
                status = pathlib.Path(f"/proc/{child}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    peaks[child] = int(line.split()[1]) / 1024
        time.sleep(0.05)


def children(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def write_job(args, folder, data, level, offload, model, settings, more_steps=0, more_train=""):
    """Its file. args.shards: numbers, or a word in quotes; more_train: lines of [train]."""
    job = folder / "job.toml"
    shards = args.shards if args.shards.startswith('"') else f"[{args.shards}]"
    job.write_text(f"""
[model]
name = "{model}"
{settings}
[data]
name = "tokens"
path = "{data}"
block = {args.block}
[train]
steps = {args.steps + more_steps}
global_batch = {args.batch}
micro_batch = 1
optimizer = "adamw"
learning_rate = 1e-4
recompute = "{args.recompute}"
evaluate = false
{more_train}
[parallel]
balance = "equal"
timeout_s = 600
[checkpoint]
dir = "{folder / "checkpoints" if args.save else ""}"
keep = 1
[zero]
level = {level}
shards = {shards}
offload_optimizer = "{"none" if offload == "none" else "disk"}"
offload_parameters = "{"disk" if offload == "both" else "none"}"
offload_path = "{args.folder or folder}"
""")
    return job


def run(args, folder, data, level, offload, model, settings, more_steps=0):
    """Each rank's peak in MiB and the report; more_steps: of a job that goes on from the last one's checkpoint."""
    weights = args.shards.split(",")
    limits = args.memory.split(",") if args.memory else []
    report = folder / "report.json"
    job = write_job(args, folder, data, level, offload, model, settings, more_steps)
    command = [args.program, "train", job, "--report", report]
    if more_steps:
        command += ["--resume", folder / "checkpoints"]
    for rank in range(len(weights)):
        command += ["--worker", "cpu:threads=1" + (f",memory={limits[rank]}" if limits else "")]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks = {}
    watching = threading.Thread(target=peaks_of, args=(process, peaks))
    watching.start()
    output = process.communicate()[0]
    watching.join()
    if process.returncode != 0:
        return None, output.strip().splitlines()[-1]
    return [peaks[pid] for pid in sorted(peaks)], json.loads(report.read_text())


def show(case, peaks, report, base):
    if peaks is None:
        print(f"{case}: {report}")
        return
    above = [peak - least for peak, least in zip(peaks, base)]
    planned = [worker["memory"]["planned_bytes"] for worker in report["workers"]]
    print(f"{case}: planned " + " : ".join(f"{value / 2**20 - least:6.0f}" for value, least in zip(planned, base) if value)
          + "   peaks " + " : ".join(f"{value:6.0f}" for value in above)
          + f"   sum {sum(above):6.0f}   {report['samples_per_s']:.0f} tokens/s   loss {report['train_loss']:.6f}")


def main():
    args = arguments()
    print(json.dumps(machine.describe(args.program)))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = made_tokens(args.program, folder)
        tiny = "layers = 1\nwidth = 8\nheads = 1\ncontext = %d" % args.block
        base, report = run(args, folder, data, 0, "none", "gpt2", tiny)
        if base is None:
            sys.exit(report)
        print(f"{args.model}, shards {args.shards}; MiB above the {max(base):.0f} of a rank without a model")
        for level, offload in itertools.product(map(int, args.levels.split(",")), args.offload.split(",")):
            if offload != "none" and level < (3 if offload == "both" else 1):
                continue
            case = f"level {level}" + {"none": "", "state": ", state on disk", "both": ", state and parameters on disk"}[offload]
            for more_steps in (0, 1) if args.save else (0,):
                peaks, report = run(args, folder, data, level, offload, args.model,
                                    f"vocabulary = 50257\ncontext = {args.block}", more_steps)
                show(case + (", going on" if more_steps else ""), peaks, report, base)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
