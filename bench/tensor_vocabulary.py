#!/usr/bin/env python3
"""The saving of bimetal.tensor.parts() by the vocabulary in parts: transformers' GPT-2 on two ranks of one host, one
thread each, with the embedding and the output layer in parts, too, beside whole ones, in turns. Prints milliseconds a
step, and the most memory that each rank had resident during the steps.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import machine
import ranks

SIZES = {"layers": 4, "width": 768, "vocabulary": 50257, "block": 256, "batch": 4, "steps": 5}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["parts", "whole"], help=argparse.SUPPRESS)
    return parser.parse_args()


def peak_mib():
    """Since the last reset: /proc's clear_refs."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def train(options):
    import torch
    import torch.distributed as dist
    import transformers

    import bimetal
    from bimetal.tensor.plan import preset_of

    torch.set_num_threads(1)
    dist.init_process_group("bimetal")
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=options.vocabulary, n_positions=options.block, n_embd=options.width, n_layer=options.layers,
        n_head=options.width // 64, bos_token_id=None, eos_token_id=None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    plan = {pattern: word for pattern, word in preset_of(model).items() if options.side == "parts" or word != "vocabulary"}
    parted = bimetal.tensor.parts(model, optimizer, plan=plan)
    generator = torch.Generator().manual_seed(2)
    seconds = []
    for step in range(1 + options.steps):
        if step == 1:  # states are there
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        ids = torch.randint(options.vocabulary, (options.batch, options.block), generator=generator)
        begun = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        parted.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"ms": 1000 * statistics.median(seconds[1:]), "MiB": peak_mib(), "loss": loss.item()}))
    dist.destroy_process_group()


def measured(options, side):
    command = [sys.executable, __file__, "--side", side]
    for name in SIZES:
        command += [f"--{name}", str(getattr(options, name))]
    of_rank = [json.loads(out.splitlines()[-1]) for out in ranks.run_ranks([command] * 2, [1.0, 1.0], 10)]
    return {"ms": max(rank["ms"] for rank in of_rank), "MiB": max(rank["MiB"] for rank in of_rank), "loss": of_rank[0]["loss"]}


def main():
    options = arguments()
    if options.side:
        train(options)
        return
    print(json.dumps(machine.describe(ranks.BIMETAL) | {name: getattr(options, name) for name in SIZES}))
    rounds = [{side: measured(options, side) for side in ("parts", "whole")} for _ in range(options.rounds)]
    for side in ("parts", "whole"):
        print(json.dumps({"vocabulary": side} | {figure: statistics.median(one[side][figure] for one in rounds)
                                                 for figure in ("ms", "MiB", "loss")}), flush=True)


if __name__ == "__main__":
    main()
