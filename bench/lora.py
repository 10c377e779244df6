#!/usr/bin/env python3
"""LoRA by Hugging Face's Trainer and PEFT on two unequal workers (CPU quotas set by the operating system), in turns in one run:

  solo       each worker by itself, one after the other
  at once    each worker by itself, at the same time: what the machine has for both
  balanced   both, Bimetal's `balanced(Trainer)`: batches by speed
  ddp        both, the same script with torch's DDP on Gloo: equal batches

A GPT-2 of random weights on text of this repository, in blocks of one length, or with --ragged of an eighth of it to all of it,
padded; the same number of samples a step everywhere. The two processes stay from first to last, so that nothing but steps is
measured: each side for `--seconds`, after steps or seconds that do not count. Prints tokens/s, the shares of the last batch, and
each side as a part of the sum of the solo rates: median, least and most of the rounds.
Needs the package: PYTHONPATH=build/python, or installed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import time

import machine
import ranks
from cpu_limit import CpuLimit

SIDES = ("at once", "balanced", "ddp")
SETTLING_STEPS = {"balanced": 14, "ddp": 2}  # shares are found in the former
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
DEADLINE_S = 600  # of one side


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 4, "width": 256, "block": 128, "batch": 32, "micro-batch": 8}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--ragged", action="store_true", help="blocks of unlike lengths")
    parser.add_argument("--speeds", default="1,0.3333", help="parts of a core for the two workers")
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--seconds", type=float, default=10, help="measured, of each side")
    parser.add_argument("--settling", type=float, default=3, help="seconds of a worker by itself that do not count")
    parser.add_argument("--rounds", type=int, default=3)
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
    draw, rows, at = random.Random(1), [], 0
    while at < len(text) - options.block:
        length = draw.randint(options.block // 8, options.block) if options.ragged else options.block
        rows.append(list(text[at:at + length]))
        at += length
    return [{"input_ids": row, "labels": row} for row in rows]


def collate(samples):
    import torch

    longest = max(len(sample["input_ids"]) for sample in samples)
    padded = {name: torch.tensor([sample[name] + [fill] * (longest - len(sample[name])) for sample in samples])
              for name, fill in (("input_ids", 0), ("labels", -100))}
    lengths = torch.tensor([[len(sample["input_ids"])] for sample in samples])
    return padded if lengths.min() == longest else {**padded, "attention_mask": (torch.arange(longest) < lengths).long()}


# ---- A worker ----

def worker(requests, options):
    """Trains as often as it is asked to, as a process of its own or as a rank of a job."""
    import torch

    torch.set_num_threads(1)
    import peft, transformers  # noqa: E401, F401 (what takes long, before the quota)

    data = blocks(options)
    requests.send("ready")
    while (request := requests.recv()) is not None:
        requests.send(train(options, data, **request))


def train(options, data, side, place, steps=None):
    """The rank's steps after those that do not count, and their seconds."""
    import torch.distributed as dist
    from transformers import PrinterCallback, Trainer, TrainingArguments

    for name in PLACE:
        os.environ.pop(name, None)
    os.environ.update(place)
    kind, size, clock = Trainer, int(place.get("WORLD_SIZE", 1)), make_clock(options, side, steps)
    if side == "balanced":
        from bimetal.hf import balanced
        kind = balanced(Trainer)
    if size > 1:
        dist.init_process_group("bimetal" if side == "balanced" else "gloo")
    args = TrainingArguments(
        output_dir="unused", max_steps=steps or 1_000_000, per_device_train_batch_size=options.micro_batch, use_cpu=True,
        gradient_accumulation_steps=options.batch // (options.micro_batch * size), save_strategy="no", report_to="none",
        disable_tqdm=True, logging_strategy="no", remove_unused_columns=False)
    trainer = kind(model=make_model(options), args=args, train_dataset=data, callbacks=[clock], data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    if side == "balanced" and options.ragged:
        trainer.sampler_options["lengths"] = [len(sample["input_ids"]) for sample in data]
    trainer.train()
    if size > 1:
        dist.destroy_process_group()
    counted = clock.counted()
    return {"tokens": (len(counted) - 1) * options.batch * sum(len(sample["input_ids"]) for sample in data) / len(data),
            "seconds": counted[-1] - counted[0], "s_per_step": (counted[-1] - counted[0]) / (len(counted) - 1),
            "shares": trainer.sampler.shares if side == "balanced" else None}


def make_clock(options, side, steps):
    """A job ends after `steps`, a worker by itself when it has been measured for long enough."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self):
            self.begun, self.ends = time.perf_counter(), []

        def counted(self):
            if steps is not None:
                return self.ends[SETTLING_STEPS[side]:]
            return [end for end in self.ends if end >= self.begun + options.settling]

        def on_step_end(self, args, state, control, **_):
            self.ends.append(time.perf_counter())
            enough = self.begun + options.settling + options.seconds
            if steps is None and self.ends[-1] > enough and len(self.counted()) > 1:
                control.should_training_stop = True

    return Clock()


# ---- Who asks them ----

class Workers:
    """Processes that are gone when they are left; each is under its CPU quota once it is ready."""

    def __init__(self, options):
        self.options, self.speeds = options, [float(speed) for speed in options.speeds.split(",")]

    def __enter__(self):
        spawn = multiprocessing.get_context("spawn")
        with contextlib.ExitStack() as stack:
            self.pipes = []
            for _ in self.speeds:
                mine, theirs = spawn.Pipe()
                process = spawn.Process(target=worker, args=(theirs, self.options), daemon=True)
                process.start()
                theirs.close()
                stack.callback(process.join)
                stack.callback(process.kill)
                self.pipes.append((mine, process))
            for (pipe, process), speed in zip(self.pipes, self.speeds):
                self.answer(pipe)
                limit = CpuLimit(speed, self.options.period_ms)
                # Removed after its process: the stack ends what came last first.
                stack.callback(limit.__enter__().__exit__)
                stack.callback(process.join)
                stack.callback(process.kill)
                limit.add(process.pid)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def answer(self, pipe):
        if not pipe.poll(DEADLINE_S):
            sys.exit(f"a worker has not answered within {DEADLINE_S} s")
        try:
            return pipe.recv()
        except EOFError:
            sys.exit("a worker has failed; see above")

    def found(self, asked, requests):
        """The results of the workers that are `asked`, at the same time."""
        pipes = [self.pipes[number][0] for number in asked]
        for pipe, request in zip(pipes, requests):
            pipe.send(request)
        return [self.answer(pipe) for pipe in pipes]

    def alone(self, *asked):
        return self.found(asked, [{"side": "solo", "place": {}}] * len(asked))

    def together(self, side, s_per_step):
        """A job whose steps are expected to take about so long."""
        steps = max(3, round(self.options.seconds / s_per_step))
        count, port = str(len(self.speeds)), str(ranks.free_port())
        return self.found(range(len(self.speeds)), [
            {"side": side, "steps": SETTLING_STEPS[side] + steps,
             "place": dict(zip(PLACE, (str(rank), count, str(rank), count, "127.0.0.1", port)))}
            for rank in range(len(self.speeds))])[0]


def tokens_per_s(found):
    return found["tokens"] / found["seconds"]


def measure(workers):
    count = len(workers.speeds)
    solo = [workers.alone(number)[0] for number in range(count)]
    at_once = workers.alone(*range(count))
    balanced = workers.together("balanced", 1 / sum(1 / one["s_per_step"] for one in solo))
    ddp = workers.together("ddp", max(one["s_per_step"] for one in solo) / count)
    return {"solo": [tokens_per_s(one) for one in solo], "at once": sum(tokens_per_s(one) for one in at_once),
            "balanced": tokens_per_s(balanced), "shares": balanced["shares"], "ddp": tokens_per_s(ddp)}


def main():
    options = arguments()
    sys.path.append(str(ranks.ROOT / "build" / "python"))  # the workers' too
    os.environ["OMP_NUM_THREADS"] = "1"
    print(json.dumps(machine.describe(ranks.BIMETAL)), flush=True)
    rounds = []
    with Workers(options) as workers:
        for _ in range(options.rounds):
            begun = time.monotonic()
            rounds.append(measure(workers))
            print(json.dumps({**rounds[-1], "seconds": round(time.monotonic() - begun)}), flush=True)
    for side in SIDES:
        parts = [one[side] / sum(one["solo"]) for one in rounds]
        print(f"{side:9} ÷ Σ solo: {statistics.median(parts):.3f} ({min(parts):.3f} to {max(parts):.3f})")
    parts = [one["balanced"] / one["at once"] for one in rounds]
    print(f"balanced ÷ at once: {statistics.median(parts):.3f} ({min(parts):.3f} to {max(parts):.3f})")


if __name__ == "__main__":
    main()
