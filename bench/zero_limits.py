#!/usr/bin/env python3
"""Training with little memory: a large GPT-2 at ZeRO's level 3 on ranks that cgroups hold to --limits (GiB), as if they
were machines of that size. Shards by memory, beside equal ones, PyTorch's FSDP2 and (--deepspeed) DeepSpeed's ZeRO-3
under the same limits, and beside a run without limits, whose losses it must have.

    sudo bench/zero_limits.py                                       # GPT-2 large, 774 million parameters, 9 and 5 GiB
    sudo bench/zero_limits.py --model gpt2-xl --offload both --folder /mnt/nvme

Random tokens, AdamW, each unit recomputed, a thread for each rank. A rank that needs more than its limit is ended by the kernel,
and the case is shown as that: each has a time of its own after which it counts as hung. The run without limits needs the memory of
both ranks together, and the data's files must not lie in memory (--folder).
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import machine
import ranks
import zero_memory
import zero_vs_fsdp
from made_tokens import made_tokens
from memory_limit import MemoryLimit

CASES = ("unlimited", "memory", "equal", "fsdp2")
GRACE_S = 20  # for the other ranks to end by themselves


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(zero_memory.ROOT / "build" / "bimetal"))
    parser.add_argument("--model", default="gpt2-large", choices=["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
    parser.add_argument("--limits", default="9,5", help="GiB of each rank; as many ranks")
    parser.add_argument("--offload", default="none", choices=["none", "state", "both"],
                        help="what is on disk: nothing, the optimizer's state, or the parameters, too")
    parser.add_argument("--folder", default="", help="for the files, on a disk; default: the system's temporary one")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--keep-below", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2, help="blocks in a step over all ranks")
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of a case")
    parser.add_argument("--deepspeed", default="", help="Python of an environment that has it: zero_vs_fsdp.py")
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    args.recompute, args.save = "all", False
    if unknown := set(args.cases.split(",")) - set(CASES):
        parser.error(f"--cases {', '.join(sorted(unknown))}: known are {', '.join(CASES)}")
    return args


def run_limited(commands, limits, timeout_s):
    """Runs commands[r] as rank r under limits[r] bytes (None: none). Returns the outcome, and all output."""
    port = ranks.free_port()
    processes, outputs = [], []
    with contextlib.ExitStack() as stack:
        held = [limit and stack.enter_context(MemoryLimit(limit)) for limit in limits]
        for rank, (command, limit) in enumerate(zip(commands, held)):
            env = os.environ | {"OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(len(commands)),
                                "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(len(commands)),
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            outputs.append(stack.enter_context(tempfile.TemporaryFile("w+")))
            processes.append(subprocess.Popen([str(part) for part in command], env=env, stdout=outputs[-1], stderr=subprocess.STDOUT,
                                              preexec_fn=limit.enter if limit else None))
        hung = not wait_for(processes, timeout_s)
        killed = [rank for rank, limit in enumerate(held) if limit and limit.kills() > 0]
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read())
    if killed:
        return f"out of memory: the kernel ended rank {', '.join(map(str, killed))}", texts
    if hung:
        return "not through in time", texts
    failed = [rank for rank, process in enumerate(processes) if process.returncode != 0]
    if failed:
        lines = [line for line in texts[failed[0]].splitlines() if line.strip()]
        told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
        return f"rank {failed[0]} failed: {told}", texts
    return None, texts


def wait_for(processes, timeout_s):
    """Whether all have ended by themselves. Once one has failed the others have some time, and then none is left."""
    deadline = time.monotonic() + timeout_s
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline:
                return any(process.returncode for process in processes)
            time.sleep(0.2)
        return True
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def run_bimetal(args, folder, data, shards, limits, checked):
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    job_args = argparse.Namespace(**vars(args) | {"shards": shards})
    job = zero_memory.write_job(job_args, folder, data, 3, args.offload, args.model, f"vocabulary = 50257\ncontext = {args.block}",
                                more_train=f'precision = "{args.precision}"\ncheck_memory = "{"refuse" if checked else "off"}"')
    command = [args.program, "train", job, "--report", report, "--set", f"zero.keep_below={args.keep_below}"]
    command += ["--worker", "cpu:threads=1"] * len(limits)
    begin = time.monotonic()
    failure, _ = run_limited([command] * len(limits), limits, args.timeout)
    return failure, None if failure else json.loads(report.read_text()), time.monotonic() - begin


def show(name, failure, report, seconds):
    if failure:
        print(f"{name:34} {failure} (after {seconds:.0f} s)", flush=True)
        return
    losses = " ".join(f"{point['loss']:.6f}" for point in report["history"])
    peaks = " : ".join(f"{(worker['memory']['peak_bytes'] or 0) / 2**30:.2f}" for worker in report["workers"])
    planned = " : ".join(f"{(worker['memory']['planned_bytes'] or 0) / 2**30:.2f}" for worker in report["workers"])
    print(f"{name:34} losses {losses}   peaks {peaks} GiB (planned {planned})   {seconds:.0f} s", flush=True)


def show_peer(name, command, limits, timeout_s):
    begin = time.monotonic()
    failure, texts = run_limited([command] * len(limits), limits, timeout_s)
    lines = [line for line in texts[0].splitlines() if line.startswith(name + " ")]
    title = f"{name}, equal by design, nothing on disk"
    print(f"{title:34} {failure or lines[0]} (after {time.monotonic() - begin:.0f} s)", flush=True)


def main():
    args = arguments()
    print(json.dumps(machine.describe(args.program)))
    limits = [int(float(gib) * 2**30) for gib in args.limits.split(",")]
    nothing = [None] * len(limits)
    cases = args.cases.split(",")
    print(f"{args.model}, level 3, {args.precision}, on disk: {args.offload}; ranks of {' and '.join(args.limits.split(','))} GiB, "
          f"{args.batch} blocks of {args.block} tokens a step", flush=True)
    losses = {}
    with tempfile.TemporaryDirectory(dir=args.folder or None) as name:
        folder = pathlib.Path(name)
        data = made_tokens(args.program, folder)
        for case, title, shards, held, checked in (
                ("unlimited", "no limits", args.limits, nothing, True),
                ("memory", "shards by memory", '"memory"', limits, True),
                ("equal", "equal shards", '"equal"', limits, False)):
            if case not in cases:
                continue
            failure, report, seconds = run_bimetal(args, folder, data, shards, held, checked)
            show(title, failure, report, seconds)
            if report:
                losses[case] = [point["loss"] for point in report["history"]]
    if "fsdp2" in cases:
        show_peer("FSDP2", [sys.executable, *zero_vs_fsdp.fsdp_command(args)], limits, args.timeout)
    if args.deepspeed:
        show_peer("DeepSpeed", [args.deepspeed, *zero_vs_fsdp.deepspeed_command(args)], limits, args.timeout)
    if {"unlimited", "memory"} <= losses.keys():
        apart = max(abs(a / b - 1) for a, b in zip(losses["unlimited"], losses["memory"]))
        print(f"losses with and without limits differ by {apart:.1e} of themselves at most")
        if apart > 1e-5:
            sys.exit("that is more than another order of sums explains")


if __name__ == "__main__":
    main()
