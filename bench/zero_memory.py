#!/usr/bin/env python3
"""Each rank's memory in a job at ZeRO's levels, with shards in the proportion given, beside level 0; and with the
optimizer's state in a file, or the parameters of level 3, too (--offload none,state,both). With --save each job ends
with a checkpoint, and one that goes on from it for a step is measured, too.

A language model on random tokens, AdamW; the ranks compute alike. Prints each rank's peak of resident memory (the report's: of its
own, without the neighbours' buckets), less what a rank of a job with a tiny model needs, beside what was planned and their ratio, and
tokens/s. The peak has activations, gathered parameters and buffers in it, too. With --save it is the process's of the whole job.
Where the job itself saw no need for a plan, `bimetal plan` makes it. --memory limits what each rank may allocate.
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
    parser.add_argument("--settings", default="", help="of the model beside its vocabulary and context, as layers=6,width=512")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--shards", default="2,1", help="weights of the ranks' shards; as many ranks")
    parser.add_argument("--levels", default="0,1,2,3")
    parser.add_argument("--offload", default="none", help="what is on disk, above level 0: none, state, or both, the parameters of level 3, too")
    parser.add_argument("--update", default="step", help="zero.update of level 3: step, backward, or step,backward")
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


def write_job(args, folder, data, level, offload, model, settings, more_steps=0, more_train="", more_zero=""):
    """Its file. args.shards: numbers, or a word in quotes; settings: lines of [model]; more_train: of [train], more_zero: of [zero]."""
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
{more_zero}
""")
    return job


def workers_of(args):
    limits = args.memory.split(",") if args.memory else []
    for rank in range(len(args.shards.split(","))):
        yield from ("--worker", "cpu:threads=1" + (f",memory={limits[rank]}" if limits else ""))


def planned(args, job, report):
    """The plan for each rank in MiB; by `bimetal plan` if the reported job has made no plan."""
    peaks = [worker["memory"]["planned_bytes"] for worker in report["workers"]]
    if None in peaks:
        done = subprocess.run([args.program, "plan", str(job), "--json", *workers_of(args)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        peaks = [use["peak"] for use in json.loads(done.stdout)["memory"]["ways"][0]["uses"]]
    return [peak / 2**20 for peak in peaks]


def run(args, folder, data, level, offload, model, settings, more_steps=0, update="step"):
    """Each rank's peak in MiB and the report; more_steps: of a job that goes on from the last one's checkpoint; update: zero.update."""
    report = folder / "report.json"
    job = write_job(args, folder, data, level, offload, model, settings, more_steps,
                    more_train=f'precision = "{args.precision}"', more_zero=f'update = "{update}"')
    command = [args.program, "train", job, "--report", report, *workers_of(args)]
    if more_steps:
        command += ["--resume", folder / "checkpoints"]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks = {}
    watching = threading.Thread(target=peaks_of, args=(process, peaks))
    watching.start()
    output = process.communicate()[0]
    watching.join()
    if process.returncode != 0:
        return None, output.strip().splitlines()[-1]
    told = json.loads(report.read_text())
    if args.save:
        return [peaks[pid] for pid in sorted(peaks)], told
    return [worker["memory"]["peak_bytes"] / 2**20 for worker in told["workers"]], told


def show(case, peaks, plans, report, base):
    if peaks is None:
        print(f"{case}: {report}")
        return

    def columns(values, form="6.0f"):
        return " : ".join(f"{value:{form}}" for value in values)

    above = [peak - least for peak, least in zip(peaks, base)]
    print(f"{case}: planned " + columns(plan - least for plan, least in zip(plans, base)) + "   peaks " + columns(above)
          + f"   sum {sum(above):6.0f}   planned ÷ measured, all in all, " + columns((p / m for p, m in zip(plans, peaks)), ".3f")
          + f"   {report['samples_per_s']:.0f} tokens/s   loss {report['train_loss']:.6f}")


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
        chosen = dict(part.split("=") for part in args.settings.split(",") if part)
        settings = "\n".join(f"{key} = {value}" for key, value in
                             ({"vocabulary": 50257, "context": args.block} | chosen).items())
        print(f"{args.model}, shards {args.shards}; MiB above the {max(base):.0f} of a rank without a model")
        for level, offload, update in itertools.product(map(int, args.levels.split(",")), args.offload.split(","), args.update.split(",")):
            if (offload != "none" and level < (3 if offload == "both" else 1)) or (update == "backward" and level < 3):
                continue
            case = f"level {level}" + {"none": "", "state": ", state on disk", "both": ", state and parameters on disk"}[offload]
            case += ", updated in backward" if update == "backward" else ""
            for more_steps in (0, 1) if args.save else (0,):
                peaks, report = run(args, folder, data, level, offload, args.model, settings, more_steps, update)
                plans = planned(args, folder / "job.toml", report) if peaks else []
                show(case + (", going on" if more_steps else ""), peaks, plans, report, base)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
