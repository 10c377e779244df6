#!/usr/bin/env python3
"""Why runs of one all_reduce in shared memory differ: each beside how far apart the processors are just then.

Prints for each run the time of a word's way between two processors and back, and the rate at which one reads
what the other has written (core_distance.cpp), before and after the run; and the run's median and processor
time. Needs build/fabric_bench (or FABRIC_BENCH) and a C++ compiler.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

from fabric_vs_gloo import FABRIC_BENCH, HERE

TIMEOUT_S = 120


def output_of(command: list[str]) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each run")
    parser.add_argument("--runs", type=int, default=12)
    args = parser.parse_args()
    size = str(args.mib << 20)
    bench = [FABRIC_BENCH, "allreduce", "--ranks", "2", "--transport", "shm", "--min", size, "--max", size,
             "--seconds", str(args.seconds), "--json"]
    print(f"{'ping ns':>16}{'transfer GB/s':>18}{'median ms':>12}{'CPU ms':>10}")
    with tempfile.TemporaryDirectory() as folder:
        program = str(pathlib.Path(folder, "core_distance"))
        subprocess.run([os.environ.get("CXX", "c++"), "-std=c++17", "-O2", "-pthread", "-o", program,
                        str(HERE / "core_distance.cpp")], check=True)
        for _ in range(args.runs):
            before = output_of([program])
            run = output_of(bench)["results"][0]
            after = output_of([program])
            print(f"{before['ping_ns']:>8.0f}{after['ping_ns']:>8.0f}{before['transfer_gb_s']:>10.1f}"
                  f"{after['transfer_gb_s']:>8.1f}{run['p50_us'] * 1e-3:>12.1f}{run['cpu_us'] * 1e-3:>10.1f}",
                  flush=True)


if __name__ == "__main__":
    main()
