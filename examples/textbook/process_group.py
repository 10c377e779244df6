"""First steps with torch.distributed: processes that start each other, and the calls by which they talk.

    python examples/textbook/process_group.py --ranks 3
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, size, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("bimetal", rank=rank, world_size=size)  # was: "gloo"

    total = torch.ones(4) * (rank + 1)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)

    news = torch.arange(3.0) if rank == 0 else torch.zeros(3)
    dist.broadcast(news, src=0)

    everyone = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(everyone, torch.tensor([float(rank)]))

    part = torch.zeros(1)
    dist.scatter(part, [torch.tensor([10.0 * r]) for r in range(size)] if rank == 0 else None, src=0)
    gathered = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
    dist.gather(part + 1, gathered, dst=0)

    token = torch.zeros(1)  # goes round the ring
    if rank > 0:
        dist.recv(token, src=rank - 1)
    token += 1
    dist.send(token, dst=(rank + 1) % size)
    if rank == 0:
        dist.recv(token, src=size - 1)

    dist.barrier()
    print(f"rank {rank}: sum {total[0].item():.0f}, news {news.tolist()}, everyone {[int(x) for x in everyone]}, "
          f"part {part.item():.0f}", flush=True)
    if rank == 0:
        print(f"gathered {[int(x) for x in gathered]}, the token has been at {token.item():.0f} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    mp.spawn(run, args=(args.ranks, free_port), nprocs=args.ranks)
