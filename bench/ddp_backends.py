#!/usr/bin/env python3
"""torch's own DDP on backend bimetal beside Gloo: the same processes train the same CNN, in turn, in one run.

Prints images/s of both (medians of the rounds) and the median of the rounds' ratios; above 1 Bimetal is faster.
Needs the package: PYTHONPATH=build/python, or installed.
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


def rank(args):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import bimetal  # noqa: F401
    from torch_ddp_worker import cnn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "bimetal": dist.new_group(backend="bimetal")}
    images = torch.randn(args.batch // dist.get_world_size(), 1, 28, 28)
    labels = torch.randint(0, 10, (len(images),))
    trained = {}
    for name, group in groups.items():
        torch.manual_seed(1)
        model = DistributedDataParallel(cnn(), process_group=group)
        trained[name] = model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def steps(name, count):
        model, optimizer = trained[name]
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return count * args.batch / (time.perf_counter() - begun)

    for name in groups:
        steps(name, 5)
    rounds = []
    for number in range(args.rounds):
        order = list(groups) if number % 2 == 0 else list(groups)[::-1]
        rounds.append({name: steps(name, args.steps) for name in order})
    if dist.get_rank() == 0:
        print(json.dumps(rounds))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="images per step over all ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank(args)
        return

    import finish
    from ranks import free_port

    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "build" / "python")]))
    common = os.environ | {"WORLD_SIZE": str(args.ranks), "LOCAL_WORLD_SIZE": str(args.ranks), "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    processes = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=common | {"RANK": str(r), "LOCAL_RANK": str(r)})
                 for r in range(args.ranks)]
    rounds = json.loads(finish.outputs_of(processes, "a rank", 600)[0])
    for name in ("bimetal", "gloo"):
        print(f"{name:8} {statistics.median(r[name] for r in rounds):8.0f} images/s")
    ratios = [r["bimetal"] / r["gloo"] for r in rounds]
    print(f"ratio    {statistics.median(ratios):8.2f}   ({min(ratios):.2f} to {max(ratios):.2f} in {len(rounds)} rounds)")


if __name__ == "__main__":
    main()
