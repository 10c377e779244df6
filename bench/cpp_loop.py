#!/usr/bin/env python3
"""Data parallelism in an own loop in C++ (bimetal::DataParallel) beside the same in Python: torch's DDP on backend bimetal.

Two ranks of one thread train a CNN (SGD) and a small GPT (AdamW: fused in Python, bimetal::AdamW in C++) on made data, in turn, round
by round. Prints medians of samples/s and of the rounds' ratios as JSON, with the machine and the versions. A ratio above 1: C++ is
faster. Needs `ninja -C build cpp_loop bimetal_python` (or the package installed).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build" / "bench" / "cpp_loop"
WIDTH, HEADS, CONTEXT, WORDS, BLOCKS, WARM_UP = 256, 4, 64, 2000, 4, 3


def make_gpt():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            parts = self.qkv(self.first(x)).view(len(x), CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(len(x), CONTEXT, WIDTH))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
            self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, x):
            return self.head(self.last(self.blocks(self.words(x) + self.places(torch.arange(CONTEXT)))))

    return Gpt()


def rank(model, batch, steps):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import bimetal  # noqa: F401 (the back end)
    from torch_ddp_worker import cnn

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("bimetal")
    samples, own = 16 * batch, batch // dist.get_world_size()
    if model == "cnn":
        x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
        net = cnn()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    else:
        text = torch.randint(WORDS, (samples, CONTEXT + 1))
        x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        net = make_gpt()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=1e-2, fused=True)
    ddp = DistributedDataParallel(net)
    order = torch.randperm(samples)
    for step in range(steps + WARM_UP):
        if step == WARM_UP:
            begun = time.perf_counter()
        at = (step % 16) * batch + dist.get_rank() * own
        rows = order[at:at + own]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x[rows]).flatten(0, -2), y[rows].flatten()).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(json.dumps({"samples": steps * batch, "seconds": time.perf_counter() - begun}))
    dist.destroy_process_group()


def rate_of(command, ranks):
    import finish
    from ranks import free_port

    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "build" / "python")]))
    common = os.environ | {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    processes = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=common | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(ranks)]
    told = json.loads(finish.outputs_of(processes, "a rank", 600)[0])
    return told["samples"] / told["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="images, or a quarter as many sequences, per step over all ranks")
    parser.add_argument("--steps", type=int, default=30, help="of one measurement")
    parser.add_argument("--rank", choices=["cnn", "gpt"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank, args.batch, args.steps)
        return

    import machine
    from ranks import BIMETAL

    figures = {"machine": machine.describe(BIMETAL), "ranks": args.ranks, "rounds": args.rounds, "steps": args.steps}
    for model, batch in (("cnn", args.batch), ("gpt", args.batch // 4)):
        commands = {"cpp": [PROGRAM, model, str(batch), str(args.steps)],
                    "python": [sys.executable, __file__, "--rank", model, "--batch", str(batch), "--steps", str(args.steps)]}
        rounds = []
        for number in range(args.rounds):
            order = list(commands) if number % 2 == 0 else list(commands)[::-1]
            rounds.append({name: rate_of(commands[name], args.ranks) for name in order})
            print(model, rounds[-1], file=sys.stderr, flush=True)
        ratios = [r["cpp"] / r["python"] for r in rounds]
        figures[model] = {"global_batch": batch, "cpp": round(statistics.median(r["cpp"] for r in rounds), 1),
                          "python": round(statistics.median(r["python"] for r in rounds), 1),
                          "ratio": [round(f(ratios), 3) for f in (statistics.median, min, max)]}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
