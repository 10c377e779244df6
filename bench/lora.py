#!/usr/bin/env python3
"""LoRA by Hugging Face's Trainer and PEFT on two unequal workers (CPU quotas set by the operating system), in turns in one run:

  solo       each worker by itself, one after the other
  balanced   both, Bimetal's `balanced(Trainer)`: batches by speed
  ddp        both, the same script with torch's DDP on Gloo: equal batches

A GPT-2 of random weights on text of this repository, blocks of one length, the same number of tokens a step everywhere. Prints
tokens/s, and balanced and ddp as a part of the sum of the solo rates: median, least and most of the rounds.
Needs the package: PYTHONPATH=build/python, or installed.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import machine
import ranks

SIZES = ("layers", "width", "block", "batch", "micro-batch", "steps", "warm-up")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in zip(SIZES, (6, 256, 128, 32, 8, 30, 12)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--speeds", default="1,0.3333", help="parts of a core for the two workers")
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["solo", "balanced", "ddp"], help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(options):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=options.block, n_embd=options.width, n_layer=options.layers,
                                      n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
    return get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True,
                                           task_type="CAUSAL_LM"))


def blocks(options):
    text = b"".join(path.read_bytes() for path in sorted((ranks.ROOT / "docs").glob("*.md")))
    rows = [list(text[i:i + options.block]) for i in range(0, len(text) - options.block, options.block)]
    return [{"input_ids": row, "labels": row} for row in rows]


def train(options):
    """One rank: prints the seconds of the steps after the warm-up, in which shares are found."""
    import torch
    import torch.distributed as dist
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def __init__(self):
            self.ends = []

        def on_step_end(self, *_, **__):
            self.ends.append(time.perf_counter())

    torch.set_num_threads(1)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    kind, clock = Trainer, Clock()
    if options.side == "balanced":
        from bimetal.hf import balanced
        kind = balanced(Trainer)
        dist.init_process_group("bimetal")
    elif options.side == "ddp":
        dist.init_process_group("gloo")
    args = TrainingArguments(
        output_dir="unused", max_steps=options.steps, per_device_train_batch_size=options.micro_batch, use_cpu=True,
        gradient_accumulation_steps=options.batch // (options.micro_batch * size), save_strategy="no", report_to="none",
        disable_tqdm=True, logging_strategy="no", remove_unused_columns=False)
    trainer = kind(model=make_model(options), args=args, train_dataset=blocks(options), callbacks=[clock],
                   data_collator=lambda rows: {name: torch.tensor([row[name] for row in rows]) for name in rows[0]})
    trainer.train()
    ends = clock.ends[options.warm_up:]
    print(json.dumps({"seconds": ends[-1] - ends[0], "steps": len(ends) - 1}))
    if dist.is_initialized():
        dist.destroy_process_group()


def tokens_per_s(options, side, speeds):
    command = [sys.executable, __file__, "--side", side]
    for name in SIZES:
        command += [f"--{name}", str(getattr(options, name.replace("-", "_")))]
    outputs = ranks.run_ranks([command] * len(speeds), speeds, options.period_ms)
    mine = json.loads(outputs[0].splitlines()[-1])
    return options.batch * options.block * mine["steps"] / mine["seconds"]


def measure(options, speeds):
    alone = [tokens_per_s(options, "solo", [speed]) for speed in speeds]
    return {"solo": alone, **{side: tokens_per_s(options, side, speeds) for side in ("balanced", "ddp")}}


def main():
    options = arguments()
    if options.side:
        train(options)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(ranks.ROOT / "build" / "python")]))
    speeds = [float(speed) for speed in options.speeds.split(",")]
    print(json.dumps(machine.describe(ranks.BIMETAL)), flush=True)
    rounds = []
    for _ in range(options.rounds):
        rounds.append(measure(options, speeds))
        print(json.dumps(rounds[-1]), flush=True)
    for side in ("balanced", "ddp"):
        parts = [one[side] / sum(one["solo"]) for one in rounds]
        print(f"{side:9} ÷ Σ solo: {statistics.median(parts):.3f} ({min(parts):.3f} to {max(parts):.3f})")


if __name__ == "__main__":
    main()
