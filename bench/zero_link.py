#!/usr/bin/env python3
"""ZeRO's levels, a pipeline of two stages and tensors in two parts, over a link of --mbit between two hosts (network namespaces on this machine; root is
needed), beside PyTorch's FSDP2 on Gloo over the same link, in one run. A GPT-2 on random tokens, AdamW, float32, a thread for each rank,
one micro-batch a rank, recomputed; the last two compute the same blocks one by one.

Prints seconds a step (medians), the bytes of parameters and gradients that each rank must send in it over the link's rate (the bound of
a job that hides all computing), their ratio, and what `bimetal plan` forecasts where it names that way. With --memory each worker has
no more than that (but FSDP2's ranks), and what one of them alone says to the job stands first.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import job_file
import machine
import pipeline
import ranks
import zero_vs_fsdp
from finish import outputs_of
from link import WIRE, Hosts
from made_tokens import made_tokens

MBIT = 1_000_000
PORT = 29581
# The part of the parameters that each of two ranks sends in a step: half of them for each reduction into shards, and
# for each gather.
HALVES = {0: 2, 1: 2, 2: 2, 3: 3}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--model", default="gpt2", choices=list(zero_vs_fsdp.SIZES))
    parser.add_argument("--levels", default="0,1,2,3")
    parser.add_argument("--without", default="", help="of fsdp, pipeline, tensor and plan what is not to be measured, with commas")
    parser.add_argument("--activations", default="none", help="of the pipeline: how they are shortened, with commas")
    parser.add_argument("--memory", default="", help="of each worker: 1500MB; so that the model fits on neither, say")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=2, help="blocks in a step over both ranks; FSDP2 takes one at a time")
    parser.add_argument("--block", type=int, default=128)
    return parser.parse_args()


def on_both(hosts, command, folder):
    """The output of each rank of `command`."""
    token = folder / "token"
    if not token.exists():
        subprocess.run([ranks.BIMETAL, "token", token], check=True, capture_output=True)
    processes = []
    for rank, name in enumerate(hosts.names):
        # Namespaces share the machine's memory: hosts would not.
        env = os.environ | {"OMP_NUM_THREADS": "1", "BIMETAL_TRANSPORT": "tcp", "BIMETAL_TOKEN_FILE": str(token), "RANK": str(rank),
                            "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": hosts.addresses[0],
                            "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": WIRE}
        processes.append(subprocess.Popen(hosts.on(name, [str(part) for part in command]), env=env, text=True,
                                                stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return outputs_of(processes, " ".join(map(str, command)), ranks.TIMEOUT_S)


def write_job(folder, args):
    return job_file.write_job(
        folder / "job.toml", model={"name": args.model, "vocabulary": 50257, "context": args.block},
        data=job_file.tokens(folder, args.block),
        train={"steps": args.steps, "epochs": 1000, "global_batch": args.batch, "optimizer": "adamw", "learning_rate": 1e-4,
               "recompute": "all", "evaluate": False},
        parallel={"balance": "equal", "timeout_s": 300}, checkpoint={"dir": ""})


def worker(args):
    return "cpu:threads=1" + (f",memory={args.memory}" if args.memory else "")


def alone(args, job):
    """One worker's report to the job by itself: that it trains, or why it does not."""
    done = subprocess.run([ranks.BIMETAL, "train", job, "--worker", worker(args)], text=True, capture_output=True,
                          timeout=ranks.TIMEOUT_S)
    return done.stderr.strip().splitlines()[0] if done.returncode else "trains"


def train(hosts, folder, args, job, settings):
    """Median seconds of a step."""
    report = folder / "report.json"
    command = [ranks.BIMETAL, "train", job, "--worker", worker(args), "--report", report]
    for setting in settings:
        command += ["--set", setting]
    on_both(hosts, command, folder)
    return pipeline.median_step(json.loads(report.read_text()))


def forecasts(hosts, folder, args, job):
    plan = json.loads(on_both(hosts, [ranks.BIMETAL, "plan", job, "--json", "--worker", worker(args)], folder)[0])
    return {way["title"]: way["step_s"] for way in plan["mesh"]["best"]}


def line(name, seconds, sent_s=None):
    bound = f"{sent_s:8.2f} {seconds / sent_s:6.2f}" if sent_s else ""
    print(f"{name:24} {seconds:8.2f} {bound}", flush=True)


def main():
    args = arguments()
    without = args.without.split(",")
    layers, width, _ = zero_vs_fsdp.SIZES[args.model]
    parameters = 12 * layers * width * width + (50257 + args.block) * width
    print(json.dumps(machine.describe(ranks.BIMETAL) | {"mbit": args.mbit, "model": args.model, "blocks": args.batch,
                                                         "tokens": args.block}))
    print(f"{'':24} {'s a step':>8} {'bound':>8} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as name, Hosts() as hosts:
        folder = pathlib.Path(name)
        made_tokens(ranks.BIMETAL, folder)
        job = write_job(folder, args)
        if args.memory:
            print(f"one worker: {alone(args, job)}", flush=True)
        hosts.limit(args.mbit * MBIT)
        half = 2 * parameters / (args.mbit * MBIT / 8)
        for level in map(int, filter(None, args.levels.split(","))):
            line(f"level {level}", train(hosts, folder, args, job, [f"zero.level={level}", "zero.shards=equal"]), HALVES[level] * half)
        if "pipeline" not in without:
            for scheme in args.activations.split(","):
                shorter = "" if scheme == "none" else f", {scheme}"
                settings = ["mesh.stages=2", "train.micro_batch=1", f"compression.activations={scheme}"]
                line(f"2 stages{shorter}", train(hosts, folder, args, job, settings))
        if "tensor" not in without:
            line("tensors in 2 parts", train(hosts, folder, args, job, ["mesh.tensor=2", "train.micro_batch=1"]))
        if "fsdp" not in without:
            out = on_both(hosts, [sys.executable, *zero_vs_fsdp.fsdp_command(args)], folder)[0]
            told = next(text for text in out.splitlines() if text.startswith("FSDP2 "))
            line("FSDP2", max(rank["seconds"] for rank in json.loads(told.removeprefix("FSDP2 "))), 3 * half)
        if "plan" not in without:
            for title, seconds in forecasts(hosts, folder, args, job).items():
                print(f"forecast: {title}, {seconds:.2f} s a step", flush=True)


if __name__ == "__main__":
    main()
