#!/usr/bin/env python3
"""Collectives of float32 between hosts whose links are shaped, as a share of what the links allow.

Hosts are network namespaces on this machine (root is needed). Prints for each case the bound, the median
time, bound ÷ time, and the same for torch Gloo, run after Bimetal on the same links. Where hosts have several
ranks, which share memory on each of them, a flat ring over all ranks runs as well.

The bound of all_reduce is 2(n-1)/n·S/B between n hosts with equal links of B bytes per second, and S/B of the
slow link where one is a tenth as fast as the others: its rank's data must leave it and the result arrive, by
any algorithm. That of broadcast and reduce is S/B of the slowest link.
"""

import argparse
import json
import os
import pathlib
import secrets
import subprocess
import sys

from fabric_vs_gloo import FABRIC_BENCH, HERE, by_size, describe, size_text
from finish import outputs_of
from shaped_network import Network

MIB = 1 << 20
MBIT = 1_000_000
TIMEOUT_S = 240
# The hosts' links, bytes, ranks on each host.
CASES = {
    "two hosts, 1 Gbit/s": ([1000 * MBIT] * 2, 64 * MIB, 1),
    "two hosts, 100 Mbit/s": ([100 * MBIT] * 2, 16 * MIB, 1),
    "four hosts, 1 Gbit/s": ([1000 * MBIT] * 4, 64 * MIB, 1),
    "four hosts, one of 100 Mbit/s": ([1000 * MBIT] * 3 + [100 * MBIT], 16 * MIB, 1),
    "two hosts of two ranks, 1 Gbit/s": ([1000 * MBIT] * 2, 64 * MIB, 2),
    "two hosts of two ranks, 100 Mbit/s": ([100 * MBIT] * 2, 16 * MIB, 2),
}
FLAT = ["--algorithm", "ring"]


def bound_s(operation: str, rates: list[int], size: int) -> float:
    n, slow = len(rates), min(rates)
    if slow < max(rates) or operation != "allreduce":
        return size / (slow / 8)
    return 2 * (n - 1) / n * size / (slow / 8)


def run_ranks(network: Network, words: list[str], per_host: int) -> str:
    """Rank 0's standard output."""
    n = len(network.rates) * per_host
    # Namespaces of the network still share the machine's memory: hosts would not.
    transport = "auto" if per_host > 1 else "tcp"
    token = secrets.token_hex(16)
    processes = []
    try:
        for rank in range(n):
            host, local = divmod(rank, per_host)
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(local),
                                "LOCAL_WORLD_SIZE": str(per_host), "MASTER_ADDR": network.address(0),
                                "MASTER_PORT": "29555", "BIMETAL_TOKEN": token,
                                "BIMETAL_TRANSPORT": transport, "BIMETAL_ISLAND": f"host {host}",
                                "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen(network.command(host, words), env=env, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
    return outputs_of(processes, " ".join(words), TIMEOUT_S)[0]


def bimetal(network: Network, size: int, args, per_host: int, extra: list[str]) -> dict:
    text = run_ranks(network, [FABRIC_BENCH, args.operation, "--min", str(size), "--max", str(size),
                               "--iterations", str(args.iterations), "--json", *args.bench_option, *extra],
                     per_host)
    figures = json.loads(text)["results"][0]
    return {"median_s": figures["p50_us"] * 1e-6, "cpu_s": figures["cpu_us"] * 1e-6}


def gloo(network: Network, size: int, args, per_host: int) -> dict:
    text = run_ranks(network, [sys.executable, str(HERE / "gloo_all_reduce.py"), "--operation", args.operation,
                               "--seconds", "0", str(size)], per_host)
    return by_size(text)[size]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operation", default="allreduce", choices=["allreduce", "broadcast", "reduce"])
    parser.add_argument("--case", action="append", choices=CASES, help="(default: all)")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--bench-option", action="append", default=[],
                        help="passed on to fabric_bench, as --bench-option=--dtype=bfloat16")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    figures = {"machine": describe(), "rows": []}
    print(json.dumps(figures["machine"]))
    print(f"{args.operation:35} {'size':>8}{'bound s':>10}{'Bimetal s':>11}{'of bound':>10}{'ring s':>10}"
          f"{'of bound':>10}{'Gloo s':>10}{'of bound':>10}")
    for name in args.case or CASES:
        rates, size, per_host = CASES[name]
        bound = bound_s(args.operation, rates, size)
        row = {"case": name, "bytes": size, "bound_s": bound}
        with Network(rates) as network:
            row["bimetal"] = bimetal(network, size, args, per_host, [])
            if per_host > 1 and args.operation == "allreduce":
                row["ring"] = bimetal(network, size, args, per_host, FLAT)
            if not args.no_gloo:
                row["gloo"] = gloo(network, size, args, per_host)
        line = f"{name:35} {size_text(size):>8}{bound:>10.4f}"
        for side in ("bimetal", "ring", "gloo"):
            if side in row:
                row[side]["of_bound"] = bound / row[side]["median_s"]
                line += f"{row[side]['median_s']:>11.4f}{row[side]['of_bound']:>9.3f}"
            else:
                line += f"{'–':>11}{'':9}"
        print(line, flush=True)
        figures["rows"].append(row)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
