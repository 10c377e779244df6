"""Mixed precision: autocast to float16 with a GradScaler, accumulation and clipping; alone, or with DDP where ranks are
started.

    python examples/textbook/amp.py
    torchrun --nproc-per-node 2 examples/textbook/amp.py
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
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank and forward")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--init-scale", type=float, default=2.0**16)
    args = parser.parse_args()

    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("bimetal")  # was: "gloo"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    if distributed:
        model = DDP(model)
    dataset = fashion_mnist(args.samples)
    sampler = DistributedSampler(dataset) if distributed else None
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, shuffle=not distributed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, init_scale=args.init_scale)

    for epoch in range(args.epochs):
        if distributed:
            sampler.set_epoch(epoch)
        taken = skipped = 0
        for number, (images, labels) in enumerate(loader, 1):
            last = number % args.accumulate == 0 or number == len(loader)
            with contextlib.nullcontext() if last or not distributed else model.no_sync():
                with torch.autocast(device.type, dtype=torch.float16):
                    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                scaler.scale(loss / args.accumulate).backward()
            if last:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
                before = scaler.get_scale()
                scaler.step(optimizer)  # nothing, where a gradient is not finite
                scaler.update()
                skipped += scaler.get_scale() < before
                taken += scaler.get_scale() >= before
                optimizer.zero_grad()
        rank = dist.get_rank() if distributed else 0
        print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}, {taken} steps, {skipped} skipped, "
              f"scale {scaler.get_scale():.0f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
