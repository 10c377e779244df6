"""Where a step's time goes: torch's profiler with a schedule, and its table, for ResNet-18 under DDP.

    torchrun --nproc-per-node 2 examples/textbook/profiler.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from images import fashion_mnist
from resnet import resnet18


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=15)
    parser.add_argument("--trace", help="a file for chrome://tracing")
    args = parser.parse_args()

    dist.init_process_group("bimetal")  # was: "gloo"
    torch.manual_seed(1)
    model = DDP(resnet18(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = schedule(wait=1, warmup=1, active=3)
    dataset = fashion_mnist(5 * args.batch_size * dist.get_world_size())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))

    with profile(activities=[ProfilerActivity.CPU], schedule=steps, record_shapes=True) as profiler:
        for images, labels in loader:
            with record_function("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            profiler.step()

    if dist.get_rank() == 0:
        print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=args.rows))
        if args.trace:
            profiler.export_chrome_trace(args.trace)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
