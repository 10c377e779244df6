#!/usr/bin/env python3
"""Text from GPT-2 by `bimetal generate` beside transformers' generate with its cache, in turns: tokens
per second and their ratio. Weights are random, both sides read the same Hugging Face folder, and
both take the likeliest token each time: they must be the same ones.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from machine import describe

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPT = "The quick brown fox"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default=str(ROOT / "build" / "bimetal"))
    return parser.parse_args()


def save_model(options, folder):
    import torch
    import transformers

    torch.manual_seed(1)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_layer=options.layers, n_embd=options.width, n_head=options.heads,
        n_positions=options.context, initializer_range=0.2)).save_pretrained(folder)


def in_torch(options, folder, count):
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    prompt = torch.tensor([list(PROMPT.encode())])
    model.generate(prompt, max_new_tokens=2, do_sample=False, pad_token_id=0, eos_token_id=None)
    begun = time.perf_counter()
    text = model.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None)
    return time.perf_counter() - begun, bytes(text[0].tolist())


def in_bimetal(options, folder, count):
    """The time of a whole process; its start and loading go out in the difference of two counts."""
    begun = time.perf_counter()
    done = subprocess.run(
        [options.program, "generate", folder, "--prompt", PROMPT, "--tokens", str(count), "--temperature", "0",
         "--worker", f"cpu:threads={options.threads}", "--tokenizer", "bytes"],
        capture_output=True, check=True, env=os.environ)
    return time.perf_counter() - begun, done.stdout[:-1]


def main():
    options = arguments()
    few, ratios, speeds = 8, [], []
    with tempfile.TemporaryDirectory() as folder:
        save_model(options, folder)
        for _ in range(options.rounds):
            short, _ = in_bimetal(options, folder, few)
            long, ours = in_bimetal(options, folder, options.tokens)
            seconds, theirs = in_torch(options, folder, options.tokens)
            if ours != theirs:
                sys.exit("the two have not taken the same tokens")
            speeds.append((options.tokens - few) / (long - short))
            ratios.append(speeds[-1] * seconds / options.tokens)
    print(json.dumps({"tokens_per_s": statistics.median(speeds), "of_transformers": statistics.median(ratios),
                      "rounds": [round(r, 3) for r in ratios], "machine": describe(options.program)}, indent=1))


if __name__ == "__main__":
    main()
