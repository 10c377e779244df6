#!/usr/bin/env python3
"""One card alone: GPT-2 small and a ResNet-50 by `bimetal train`, beside PyTorch as its users switch it on, without and with
torch.compile, and by `bimetal train` with train.graphs. Samples a second and their ratios, medians of rounds in turn.
A small GPT, whose steps are bound by launches, shows what graphs gain.

    bench/card.py --device cuda:0                    within eight minutes; what there was no time for is named
    bench/card.py --device cpu --tiny --rounds 1     small sizes, to know that it runs

A job's seconds are those between its short and its long run, so that neither the start nor the choice of kernels is in them.
"""

import argparse
import json
import math
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import job_file
import machine
import ranks
from made_tokens import made_tokens

SIZES = {
    False: {"gpt": {"layers": 6, "width": 512, "heads": 8, "block": 256, "batch": 8},
            "gpt2": {"layers": 12, "width": 768, "heads": 12, "block": 1024, "batch": 16},
            "resnet50": {"side": 224, "batch": 256}},
    True: {"gpt": {"layers": 2, "width": 32, "heads": 2, "block": 32, "batch": 2},
           "gpt2": {"layers": 2, "width": 32, "heads": 2, "block": 32, "batch": 4},
           "resnet50": {"side": 72, "batch": 2}},
}
BYTES = 256  # the vocabulary of tokens that are bytes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="that are timed")
    parser.add_argument("--minutes", type=float, default=7.5, help="after them nothing more is begun")
    parser.add_argument("--only", help="rows whose title has this")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes half of the time")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def rows(device):
    """Title, model, precision and memory format of each."""
    wide = "tf32" if device.startswith("cuda") else "float32"
    yield "small GPT, bfloat16", "gpt", "bfloat16", "contiguous"
    yield "GPT-2, bfloat16", "gpt2", "bfloat16", "contiguous"
    yield "ResNet-50, bfloat16, channels last", "resnet50", "bfloat16", "channels_last"
    yield f"GPT-2, {wide}", "gpt2", wide, "contiguous"
    yield f"ResNet-50, {wide}, channels last", "resnet50", wide, "channels_last"


def made_images(folder, side, count):
    """Grey noise of `side` × `side`, as IDX files."""
    for name, number in (("train", count), ("t10k", 8)):
        pixels = bytes(i * 7919 % 251 for i in range(side * side))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, number, side, side) + pixels * number)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, number) + bytes(i % 10 for i in range(number)))


def write_job(path, folder, model, size):
    train = {"global_batch": size["batch"], "micro_batch": size["batch"], "epochs": 1_000_000, "evaluate": False}
    if model.startswith("gpt"):
        tables = {"model": {"name": "gpt2", "layers": size["layers"], "width": size["width"], "heads": size["heads"],
                            "context": size["block"], "vocabulary": BYTES},
                  "data": job_file.tokens(folder, size["block"]),
                  "train": train | {"optimizer": "adamw", "learning_rate": 1e-4}}
    else:
        tables = {"model": {"name": "resnet50"}, "data": {"path": str(folder)},
                  "train": train | {"optimizer": "sgd", "learning_rate": 0.01}}
    return job_file.write_job(path, **tables)


def elapsed(job, device, steps, settings):
    report = job.with_suffix(".json")
    command = [ranks.BIMETAL, "train", str(job), "--worker", device, "--report", str(report), "--set", f"train.steps={steps}"]
    done = subprocess.run([*command, *(word for one in settings for word in ("--set", one))], capture_output=True, text=True,
                          timeout=ranks.TIMEOUT_S)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return json.loads(report.read_text())["elapsed_s"]


def ours(job, size, args, precision, memory_format, graphs="false"):
    settings = [f"train.precision={precision}", f"train.memory_format={memory_format}", f"train.graphs={graphs}"]
    warm = max(3, args.steps // 3)
    seconds = elapsed(job, args.device, warm + args.steps, settings) - elapsed(job, args.device, warm, settings)
    return size["batch"] * args.steps / seconds if seconds > 0 else math.nan


def theirs(size, args, model, precision, memory_format, compiled):
    asked = size | {"model": "gpt2" if model.startswith("gpt") else model, "device": ":".join(part for part in args.device.split(":") if "=" not in part), "precision": precision, "channels_last": memory_format == "channels_last",
                    "compile": compiled, "steps": args.steps, "warm_up": max(3, args.steps // 3), "vocabulary": BYTES, "channels": 1}
    script = pathlib.Path(__file__).with_name("card_torch.py")
    done = subprocess.run([sys.executable, str(script), json.dumps(asked)], capture_output=True, text=True, timeout=ranks.TIMEOUT_S)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])["samples_per_s"]


def measured(folder, args, model, precision, memory_format, ends):
    """Samples a second of each side, by rounds; fewer where time is over."""
    size = SIZES[args.tiny][model]
    job = write_job(folder / f"{model}.toml", folder / model, model, size)
    sides = {"bimetal": lambda: ours(job, size, args, precision, memory_format),
             "graphs": lambda: ours(job, size, args, precision, memory_format, "true"),
             "torch": lambda: theirs(size, args, model, precision, memory_format, False)}
    if not args.no_compile:
        sides["torch.compile"] = lambda: theirs(size, args, model, precision, memory_format, True)
    figures = {side: [] for side in sides}
    for number in range(args.rounds):
        for side, measure in sides.items():
            if number and side == "torch.compile":
                continue  # it compiles as long as all others run
            if time.monotonic() > ends:
                return figures
            figures[side].append(measure())
    return figures


def main():
    args = arguments()
    ends = time.monotonic() + 60 * args.minutes
    print(json.dumps(machine.describe(ranks.BIMETAL)), flush=True)
    print(f"{'samples a second':38}{'bimetal':>10}{'graphs':>10}{'ratio':>7}{'torch':>10}{'ratio':>7}{'compile':>10}{'ratio':>7}")
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model in SIZES[args.tiny]:
            (folder / model).mkdir()
        images = SIZES[args.tiny]["resnet50"]
        for model in ("gpt", "gpt2"):
            size = SIZES[args.tiny][model]
            made_tokens(ranks.BIMETAL, folder / model, 40 * size["batch"] * size["block"])
        made_images(folder / "resnet50", images["side"], 2 * images["batch"])
        for title, model, precision, memory_format in rows(args.device):
            if args.only and args.only not in title:
                continue
            try:
                figures = measured(folder, args, model, precision, memory_format, ends)
            except RuntimeError as error:
                print(f"{title:38}{error}", flush=True)
                continue
            results[title] = figures
            median = {side: statistics.median(rates) if rates else math.nan for side, rates in figures.items()}
            row = f"{title:38}{median['bimetal']:10.1f}"
            row += f"{median['graphs']:10.1f}{median['graphs'] / median['bimetal']:7.2f}"
            for side in ("torch", "torch.compile"):
                row += f"{median.get(side, math.nan):10.1f}{median['bimetal'] / median.get(side, math.nan):7.2f}"
            rounds = len(figures["torch"])
            print(row + ("" if rounds == args.rounds else f"  ({rounds} of {args.rounds} rounds: time was over)"), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
