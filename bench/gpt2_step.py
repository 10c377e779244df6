#!/usr/bin/env python3
"""A GPT-2 training step in C++ beside transformers' GPT2LMHeadModel with sdpa, in turns: tokens per
second and peak memory, and their ratios. `ninja -C build gpt2_step` first.

Both sides: float32, random tokens, the mean over the batch's tokens, AdamW (torch's fused one in
Python), so many threads, no dropout.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4, help="blocks in a step")
    parser.add_argument("--steps", type=int, default=6, help="the first is not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default=str(ROOT / "build" / "bench" / "gpt2_step"))
    parser.add_argument("--side", choices=["torch"], help=argparse.SUPPRESS)
    return parser.parse_args()


def train_in_torch(options) -> dict:
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    sizes = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20)}
    layers, width, heads = sizes[options.model]
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=options.context,
        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, use_cache=False, attn_implementation="sdpa")
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    tokens = torch.randint(config.vocab_size, (options.steps, options.batch, options.context + 1))
    for step, batch in enumerate(tokens):
        if step == 1:
            begun = time.perf_counter()
        optimizer.zero_grad()
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - begun
    return {"tokens_per_s": (options.steps - 1) * options.batch * options.context / seconds,
            "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "loss": loss.item()}


def run(command) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    options = arguments()
    if options.side:
        print(json.dumps(train_in_torch(options)))
        return
    sizes = [options.model, options.context, options.batch, options.steps, options.threads]
    ours = [options.program, *map(str, sizes)]
    theirs = [sys.executable, __file__, "--side", "torch", "--model", options.model,
              *(word for name in ("context", "batch", "steps", "threads")
                for word in (f"--{name}", str(getattr(options, name))))]
    speed, memory = [], []
    for _ in range(options.rounds):
        mine, other = run(ours), run(theirs)
        speed.append(mine["tokens_per_s"] / other["tokens_per_s"])
        memory.append(mine["peak_kb"] / other["peak_kb"])
        print(f"tokens/s {mine['tokens_per_s']:.1f} : {other['tokens_per_s']:.1f}, "
              f"peak MB {mine['peak_kb'] / 1024:.0f} : {other['peak_kb'] / 1024:.0f}, "
              f"loss {mine['loss']:.3f} : {other['loss']:.3f}", flush=True)
    print(f"C++ ÷ transformers: tokens/s {statistics.median(speed):.3f} (to reach 1), "
          f"peak memory {statistics.median(memory):.3f} (at most 1)")


if __name__ == "__main__":
    main()
