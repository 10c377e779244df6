"""Gradient accumulation whose last step of an epoch has fewer batches; alone, or with DDP where ranks are started.

    python examples/textbook/accumulation.py
    torchrun --nproc-per-node 2 examples/textbook/accumulation.py
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from images import fashion_mnist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank and forward")
    parser.add_argument("--accumulate", type=int, default=4, help="batches of a step")
    args = parser.parse_args()

    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("bimetal")  # was: "gloo"
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                          nn.Flatten(), nn.Linear(16 * 6 * 6, 10))
    if distributed:
        model = DDP(model)
    dataset = fashion_mnist(args.samples)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    samples = len(sampler) if distributed else len(dataset)
    a_step = args.batch_size * args.accumulate
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        steps, total = 0, torch.zeros(())
        for number, (images, labels) in enumerate(loader, 1):
            last = number % args.accumulate == 0 or number == len(loader)
            in_this_step = min(a_step, samples - steps * a_step)  # the remainder counts as what it is
            with contextlib.nullcontext() if last or not distributed else model.no_sync():
                loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") / in_this_step
                loss.backward()
            total += loss.detach() * in_this_step / samples
            if last:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        if distributed:
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if not distributed or dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item():.5f} in {steps} steps of {len(loader)} batches", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
