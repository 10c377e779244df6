"""One rank of the comparison: torch's own DistributedDataParallel on Gloo (or a single process when
WORLD_SIZE is 1), training the CNN of bimetal::models on Fashion-MNIST with the batch it is given.

Prints one JSON line: images and seconds of the timed steps.
"""

import argparse
import gzip
import json
import os
import pathlib
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def read_idx(path: pathlib.Path) -> numpy.ndarray:
    with gzip.open(path) as file:
        data = file.read()
    dims = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * dims).reshape(shape)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, required=True, help="images per step of this rank")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock starts")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    world = int(os.environ.get("WORLD_SIZE", 1))
    data = pathlib.Path(args.data)
    images = torch.from_numpy(read_idx(data / "train-images-idx3-ubyte.gz").copy()).unsqueeze(1)
    labels = torch.from_numpy(read_idx(data / "train-labels-idx1-ubyte.gz").astype("int64"))

    model = cnn()
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    autocast = torch.autocast("cpu", getattr(torch, args.precision), enabled=args.precision != "float32")
    order = torch.randperm(len(images))
    cursor = 0

    def step():
        nonlocal cursor
        index = order[cursor : cursor + args.batch]
        cursor = cursor + args.batch if cursor + 2 * args.batch <= len(order) else 0
        x = (images[index].float() / 255 - 0.286) / 0.353
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            loss = nn.functional.cross_entropy(model(x), labels[index])
        loss.backward()
        optimizer.step()

    for _ in range(args.warmup):
        step()
    started = time.monotonic()
    step()
    # All ranks agree on a number of steps, so that none waits for one that has stopped.
    steps = torch.tensor([max(4.0, args.seconds / (time.monotonic() - started))])
    if world > 1:
        dist.all_reduce(steps, dist.ReduceOp.MIN)
    count = int(steps.item())
    started = time.monotonic()
    for _ in range(count):
        step()
    seconds = time.monotonic() - started
    print(json.dumps({"images": count * args.batch, "seconds": seconds, "steps": count}), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
