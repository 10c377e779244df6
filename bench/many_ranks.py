"""Many ranks on this machine: how long they take to start, and an all_reduce of 4 KiB by TCP.

Each round starts `bimetal bench` with 16, 64 and 128 ranks. `start` is the time from the command to the moment when rank 0
has its group. `all_reduce` is the median over the timed runs, `end` the time from the last run to the end of the last
process. With --beside PROGRAM another build is measured in turn with this one, in the same rounds.

    .venv/bin/python bench/many_ranks.py
    .venv/bin/python bench/many_ranks.py --ranks 64,128 --beside ../before/build/capi/bimetal_lite
"""

import argparse
import pathlib
import statistics
import subprocess
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parents[1]


def measure(program: str, ranks: int, options) -> dict:
    """The figures of one run, in seconds."""
    command = [program, "bench", "allreduce", "--ranks", str(ranks), "--min", options.bytes, "--max", options.bytes,
               "--transport", options.transport, "--algorithm", options.algorithm,
               "--iterations", str(options.iterations)]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()  # what is measured: rank 0 has its group
        started = time.monotonic()
        process.stdout.readline()  # the table's head
        figures = process.stdout.readline().split()  # 4 KiB, runs, mean, p50, …: microseconds
        measured = time.monotonic()
        if process.wait(options.timeout) != 0 or len(figures) < 5:
            raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}, {figures}")
    finally:
        process.kill()
        process.wait()
    return {"start": started - begun, "all_reduce": float(figures[4]) * 1e-6, "end": time.monotonic() - measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="16,64,128", help="numbers of ranks, as 16,64,128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20, help="timed runs in a round")
    parser.add_argument("--bytes", default="4kb", help="size of the all_reduce")
    parser.add_argument("--transport", default="tcp", help="tcp, shm or auto")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one run may take to end")
    parser.add_argument("--bimetal", default=str(ROOT / "build" / "capi" / "bimetal_lite"), help="the program; without torch it starts faster")
    parser.add_argument("--beside", help="the same program of another build")
    options = parser.parse_args()
    programs = {"this build": options.bimetal}
    if options.beside:
        programs["the other"] = options.beside
    print(machine.describe(options.bimetal))
    print(f"all_reduce of {options.bytes}, transport {options.transport}, algorithm {options.algorithm}; medians of {options.rounds} rounds")
    print(f"{'ranks':>6} {'build':>11} {'start s':>9} {'all_reduce ms':>14} {'end s':>7}   start s of each round")
    for ranks in map(int, options.ranks.split(",")):
        rounds = {name: [] for name in programs}
        for _ in range(options.rounds):
            for name, program in programs.items():
                rounds[name].append(measure(program, ranks, options))
        for name, figures in rounds.items():
            start, reduce, end = (statistics.median(f[key] for f in figures) for key in ("start", "all_reduce", "end"))
            each = ", ".join(f"{f['start']:.2f}" for f in figures)
            print(f"{ranks:>6} {name:>11} {start:>9.2f} {reduce * 1e3:>14.2f} {end:>7.2f}   {each}", flush=True)


if __name__ == "__main__":
    main()
