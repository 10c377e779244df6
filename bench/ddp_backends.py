#!/usr/bin/env python3
"""torch's own DDP on backend bimetal beside Gloo: the same processes train the same CNN, and reduce 4 KB, in turn, in one run.

Prints medians of the rounds, and of the rounds' ratios, as JSON with the machine and the versions.
Needs the package: PYTHONPATH=build/python, or installed. --device cuda:0 has all ranks on that card; --linear 8x2048 trains so many
linear layers of that width, whose gradients are more than the CNN's.
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


def make_groups():
    """A group of all ranks for each, in one process, so that whatever disturbs the machine disturbs all of them."""
    import torch.distributed as dist

    import bimetal  # noqa: F401

    dist.init_process_group("gloo")
    return {"gloo": dist.group.WORLD, "bimetal": dist.new_group(backend="bimetal")}


def rank(args):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from torch_ddp_worker import cnn

    from bimetal._synchronize import synchronize

    torch.set_num_threads(1)
    device = torch.device(args.device)
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)
    groups = make_groups()
    layers, width = (int(number) for number in args.linear.split("x")) if args.linear else (0, 0)
    shape = (width,) if layers else (1, 28, 28)
    images = torch.randn(args.batch // dist.get_world_size(), *shape, device=device)
    labels = torch.randint(0, 10, (len(images),), device=device)
    trained = {}
    for name, group in groups.items():
        torch.manual_seed(1)
        chain = [torch.nn.Linear(width, width) for _ in range(layers)]
        model = DistributedDataParallel((torch.nn.Sequential(*chain) if layers else cnn()).to(device), process_group=group)
        trained[name] = model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    small = torch.ones(1024, device=device)

    def images_per_s(name, count):
        model, optimizer = trained[name]
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        synchronize(device)
        return count * args.batch / (time.perf_counter() - begun)

    def microseconds(name, count):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(small, op=dist.ReduceOp.MAX, group=groups[name])
        synchronize(device)
        return (time.perf_counter() - begun) / count * 1e6

    for name in groups:
        images_per_s(name, 5), microseconds(name, 20)
    rounds = []
    for number in range(args.rounds):
        order = list(groups) if number % 2 == 0 else list(groups)[::-1]
        rounds.append({"images_per_s": {name: images_per_s(name, args.steps) for name in order},
                       "all_reduce_4KB_us": {name: microseconds(name, args.calls) for name in order}})
    if dist.get_rank() == 0:
        print(json.dumps(rounds))
    dist.destroy_process_group()


def ratios(rounds, over, under):
    """How much faster `over` is than `under`: median, least and most of the rounds."""
    found = {"ddp": [r["images_per_s"][over] / r["images_per_s"][under] for r in rounds],
             "all_reduce_4KB": [r["all_reduce_4KB_us"][under] / r["all_reduce_4KB_us"][over] for r in rounds]}
    return {what: [round(f(values), 3) for f in (statistics.median, min, max)] for what, values in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="images per step over all ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of one measurement")
    parser.add_argument("--calls", type=int, default=200, help="of one measurement of all_reduce")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="of all ranks")
    parser.add_argument("--linear", default="", help="LAYERSxWIDTH instead of the CNN")
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank(args)
        return

    import finish
    import machine
    from ranks import BIMETAL, free_port

    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "build" / "python")]))
    common = os.environ | {"WORLD_SIZE": str(args.ranks), "LOCAL_WORLD_SIZE": str(args.ranks), "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    processes = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=common | {"RANK": str(r), "LOCAL_RANK": str(r)})
                 for r in range(args.ranks)]
    rounds = json.loads(finish.outputs_of(processes, "a rank", 600)[0])
    names = list(rounds[0]["images_per_s"])
    medians = {what: {name: round(statistics.median(r[what][name] for r in rounds), 1) for name in names} for what in rounds[0]}
    # A ratio of more than 1: the first is faster.
    pairs = {"bimetal/gloo": ratios(rounds, "bimetal", "gloo")}
    print(json.dumps({"machine": machine.describe(BIMETAL), "device": args.device, "linear": args.linear, "ranks": args.ranks,
                      "rounds": args.rounds, "medians": medians, "ratios": pairs}, indent=1))


if __name__ == "__main__":
    main()
