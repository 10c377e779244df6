"""One rank of the comparison: torch.distributed's all_reduce (or broadcast, reduce) on Gloo, float32, each
size in turn.

Prints (rank 0) one JSON line a size: bytes, the median and mean seconds of a run on the rank that took
longest, and the processor seconds of one run over all ranks.
"""

import argparse
import json
import resource
import statistics
import time

import torch
import torch.distributed as dist


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


OPERATIONS = {
    "allreduce": dist.all_reduce,
    "broadcast": lambda data: dist.broadcast(data, 0),
    "reduce": lambda data: dist.reduce(data, 0),
}


def measure(run, count: int, seconds: float) -> dict:
    data = torch.zeros(count)
    for _ in range(3):
        begun = time.perf_counter()
        run(data)
        longest = time.perf_counter() - begun
    agreed = torch.tensor([longest], dtype=torch.float64)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    runs = int(min(max(seconds / agreed.item(), 5), 20000))
    spans = torch.empty(runs, dtype=torch.float64)
    dist.barrier()
    cpu = cpu_seconds()
    begun = before = time.perf_counter()
    for i in range(runs):
        run(data)
        now = time.perf_counter()
        spans[i] = now - before
        before = now
    whole = torch.tensor([before - begun], dtype=torch.float64)
    cpu = torch.tensor([cpu_seconds() - cpu], dtype=torch.float64)
    dist.all_reduce(spans, op=dist.ReduceOp.MAX)
    dist.all_reduce(whole, op=dist.ReduceOp.MAX)
    dist.all_reduce(cpu)
    return {"bytes": 4 * count, "median_s": statistics.median(spans.tolist()),
            "mean_s": whole.item() / runs, "cpu_s": cpu.item() / runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operation", choices=OPERATIONS, default="allreduce")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("bytes", type=int, nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check = torch.arange(1000.0) + dist.get_rank()
    dist.all_reduce(check)
    n = dist.get_world_size()
    assert torch.equal(check, n * torch.arange(1000.0) + n * (n - 1) / 2)
    for size in args.bytes:
        result = measure(OPERATIONS[args.operation], size // 4, args.seconds)
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
