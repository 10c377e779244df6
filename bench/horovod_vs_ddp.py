#!/usr/bin/env python3
"""hvd.DistributedOptimizer beside torch's DDP, both on backend bimetal: the same processes train the same CNN, in turn.

Prints images/s of both (medians of the rounds) and the median of the rounds' ratios; above 1 Horovod's API is faster.
Then what a small allreduce takes with and without the round of negotiation before it.
Needs the package: PYTHONPATH=build/python, or installed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time


def rank(args):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import bimetal.horovod as hvd
    from torch_ddp_worker import cnn

    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("bimetal", init_method="env://")
    images = torch.randn(args.batch // hvd.size(), 1, 28, 28)
    labels = torch.randint(0, 10, (len(images),))
    trained = {}
    for name in ("horovod", "ddp"):
        torch.manual_seed(1)
        model = cnn()
        if name == "ddp":
            model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if name == "horovod":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        trained[name] = model, optimizer

    def steps(name, count):
        model, optimizer = trained[name]
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return count * args.batch / (time.perf_counter() - begun)

    for name in trained:
        steps(name, 5)
    rounds = []
    for number in range(args.rounds):
        order = list(trained) if number % 2 == 0 else list(trained)[::-1]
        rounds.append({name: steps(name, args.steps) for name in order})
    small = torch.ones(64)

    def microseconds(call, count=300):
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begun) / count * 1e6
    calls = {"hvd.allreduce_": lambda: hvd.allreduce_(small), "dist.all_reduce": lambda: dist.all_reduce(small)}
    latencies = {name: statistics.median(microseconds(call) for _ in range(args.rounds)) for name, call in calls.items()}
    if hvd.rank() == 0:
        for name in trained:
            print(f"{name:15} {statistics.median(one[name] for one in rounds):8.0f} images/s")
        ratios = [one["horovod"] / one["ddp"] for one in rounds]
        print(f"ratio           {statistics.median(ratios):8.2f}   ({min(ratios):.2f} to {max(ratios):.2f} in "
              f"{len(rounds)} rounds)")
        for name, took in latencies.items():
            print(f"{name:15} {took:8.0f} µs for 256 B")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="images per step over all ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank(args)
        return 0
    command = [sys.executable, "-m", "bimetal.horovod.run", "-np", str(args.ranks), sys.executable, __file__]
    return subprocess.run([*command, *sys.argv[1:]], timeout=600, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
