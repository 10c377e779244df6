#!/usr/bin/env python3
"""A Llama of 1.1 billion parameters in bfloat16, in stages on workers that cgroups hold to --limits (GiB), as if they were machines
of that size: where memory has the model cut, beside as many layers in each stage, and beside one worker without limits, whose losses
the stages must have.

    sudo bench/pipeline_limits.py --folder /mnt/nvme

`alone`: SGD, which needs parameters and gradients. `shards`: AdamW, with ZeRO-1, whose states are on a disk, and each unit
recomputed. `refused`: AdamW with its states in memory, which is more than both workers have. Random tokens, a thread for each rank. A
rank that needs more than its limit is ended by the kernel, and the case is shown as that. The run without limits needs the memory of
all, and the data's files must not lie in memory (--folder).
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import job_file
import machine
import zero_memory
from made_tokens import made_tokens
from zero_limits import run_limited, show

WAYS = {
    "alone": ("pipeline, SGD", {"optimizer": "sgd", "momentum": 0, "learning_rate": 0.1, "recompute": "all"}, {}),
    "shards": ("with ZeRO-1 and recomputation, AdamW", {"optimizer": "adamw", "learning_rate": 1e-4, "recompute": "all"},
               {"level": 1, "offload_optimizer": "disk"}),
    "refused": ("pipeline, AdamW", {"optimizer": "adamw", "learning_rate": 1e-4}, {}),
}
CASES = ("one", "limits", "equal")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(zero_memory.ROOT / "build" / "bimetal"))
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--limits", default="9,5", help="GiB of each stage's worker")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4, help="blocks in a step, each a micro-batch")
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of a case")
    parser.add_argument("--folder", default="", help="for the files, on a disk; default: the system's temporary one")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    for key, known in (("ways", WAYS), ("cases", CASES)):
        setattr(args, key, getattr(args, key).split(","))
        if unknown := set(getattr(args, key)) - set(known):
            parser.error(f"--{key} {', '.join(sorted(unknown))}: known are {', '.join(known)}")
    return args


def write_job(args, folder, way, mesh, check):
    _, train, zero = WAYS[way]
    if zero:
        zero = zero | {"offload_path": str(folder)}
    return job_file.write_job(
        folder / "job.toml",
        model={"name": args.model, "layers": args.layers, "vocabulary": args.vocabulary, "context": args.block},
        data=job_file.tokens(folder, args.block),
        train=train | {"steps": args.steps, "epochs": 1000, "global_batch": args.batch, "micro_batch": 1, "evaluate": False,
                       "precision": args.precision, "check_memory": check},
        parallel={"balance": "equal", "timeout_s": 600}, checkpoint={"dir": ""}, mesh=mesh, zero=zero)


def run(args, folder, way, mesh, limits, check):
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [args.program, "train", write_job(args, folder, way, mesh, check), "--report", report]
    command += ["--worker", "cpu:threads=1"] * len(limits)
    begin = time.monotonic()
    failure, _ = run_limited([command] * len(limits), limits, args.timeout)
    return failure, None if failure else json.loads(report.read_text()), time.monotonic() - begin


def cases_of(args, way):
    limits = [int(float(gib) * 2**30) for gib in args.limits.split(",")]
    stages = {"stages": len(limits)}
    equal = [1 + args.layers * stage // len(limits) for stage in range(1, len(limits))]
    if way == "refused":
        return {"limits": ("by memory", stages, limits, "refuse")}
    return {"one": ("one worker, no limits", {}, [None], "off"),
            "limits": ("by memory", stages, limits, "refuse"),
            "equal": ("as many layers in each", stages | {"cuts": equal}, limits, "off")}


def measure(args, folder, way):
    """Losses by case."""
    losses = {}
    for case, (title, mesh, limits, check) in cases_of(args, way).items():
        if case not in args.cases:
            continue
        failure, report, seconds = run(args, folder, way, mesh, limits, check)
        show(f"{way}: {title}", failure, report, seconds)
        if case == "limits" and bool(report) == (way == "refused"):
            sys.exit(f"{way}: {'it trained, and had to be refused' if report else 'it had to train'}")
        if not report:
            continue
        losses[case] = [point["loss"] for point in report["history"]]
        if "mesh" in report:
            print(f"{'':34} stages begin with units {report['mesh']['begins']}, {report['samples_per_s']:.1f} tokens/s", flush=True)
    return losses


def main():
    args = arguments()
    print(json.dumps(machine.describe(args.program)))
    print(f"{args.model}, {args.precision}; stages of {' and '.join(args.limits.split(','))} GiB, {args.batch} blocks of "
          f"{args.block} tokens a step", flush=True)
    apart = 0.0
    with tempfile.TemporaryDirectory(dir=args.folder or None) as name:
        folder = pathlib.Path(name)
        made_tokens(args.program, folder)
        for way in args.ways:
            print(WAYS[way][0], flush=True)
            losses = measure(args, folder, way)
            if {"one", "limits"} <= losses.keys():
                difference = max(abs(a / b - 1) for a, b in zip(losses["one"], losses["limits"]))
                print(f"losses differ by {difference:.1e} of themselves at most", flush=True)
                apart = max(apart, difference)
    if apart > 1e-4:
        sys.exit("that is more than another order of sums explains")


if __name__ == "__main__":
    main()
