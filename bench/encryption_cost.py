#!/usr/bin/env python3
"""The cost of encryption: all_reduce over TCP between two ranks of this host, plain and encrypted in turn, several
times. Prints for each size the medians, their ratio, and the CPU time per byte.

On one host the two ranks share the processors with each other and with the kernel, and loopback is
faster than most networks: the ratio here is the worst case.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def measure(program, encryption):
    command = [*program, "allreduce", "--transport", "tcp", "--ranks", "2", "--json",
               "--min", "256", "--max", "64mb", "--factor", "64", "--seconds", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "BIMETAL_ENCRYPTION": encryption})
    return {m["bytes"]: m for m in json.loads(done.stdout)["results"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fabric_bench", nargs="?", help="a fabric_bench built without torch (default: build/bimetal bench)")
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    options = parser.parse_args()
    program = [options.fabric_bench] if options.fabric_bench else [str(ROOT / "build" / "bimetal"), "bench"]
    runs = {"off": [], "on": []}
    for _ in range(options.rounds):
        for encryption, results in runs.items():
            results.append(measure(program, encryption))

    def median(encryption, size, field):
        return statistics.median(run[size][field] for run in runs[encryption])

    print(f"{'bytes':>10} {'plain µs':>10} {'encrypted µs':>13} {'ratio':>6} "
          f"{'plain CPU ns/B':>15} {'encrypted CPU ns/B':>19}")
    for size in runs["off"][0]:
        plain, sealed = (median(e, size, "p50_us") for e in ("off", "on"))
        cpu = [median(e, size, "cpu_us") * 1e3 / size for e in ("off", "on")]
        print(f"{size:>10} {plain:>10.1f} {sealed:>13.1f} {sealed / plain:>6.2f} "
              f"{cpu[0]:>15.2f} {cpu[1]:>19.2f}")


if __name__ == "__main__":
    main()
