#!/usr/bin/env python3
"""all_reduce of float32 on one host: Bimetal, torch Gloo and Open MPI in turn, in one run.

Each round starts each of the three once, with the same ranks and sizes; the figures are medians over the
rounds of each run's median time. A ratio above 1 means that Bimetal is faster. "CPU" is processor time,
user and system, of all ranks together per byte, and its ratio is Gloo's ÷ Bimetal's, so that above 1
Bimetal uses less.

With --transport tcp (default) all three use TCP over loopback, and loopback_bound.cpp shows what the system
leaves to be had: a ring on bare sockets; "of bound" is its time ÷ Bimetal's. With auto Bimetal and Open MPI
choose shared memory, Gloo has none. Needs a C++ compiler, build/fabric_bench (or FABRIC_BENCH), torch, openmpi-bin and
libopenmpi-dev (left out of the table where mpicxx or mpirun is missing).
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

import machine
import ranks as launcher

HERE = pathlib.Path(__file__).resolve().parent
FABRIC_BENCH = os.environ.get("FABRIC_BENCH", str(HERE.parent / "build" / "fabric_bench"))
TIMEOUT_S = 300
KIB, MIB = 1 << 10, 1 << 20


def bimetal(n: int, sizes: list[int], seconds: float, transport: str, extra: list[str]) -> dict:
    """One process tree a size: {bytes: result}."""
    results = {}
    for size in sizes:
        command = [FABRIC_BENCH, "allreduce", "--ranks", str(n), "--min", str(size), "--max", str(size),
                   "--seconds", str(seconds), "--transport", transport, "--json", *extra]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                              env=os.environ | {"BIMETAL_TRANSPORT": transport})
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        figures = json.loads(done.stdout)["results"][0]
        results[size] = {"median_s": figures["p50_us"] * 1e-6, "mean_s": figures["mean_us"] * 1e-6,
                         "cpu_s": figures["cpu_us"] * 1e-6}
    return results


def by_size(lines: str) -> dict:
    rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return {row["bytes"]: row for row in rows}


def gloo(n: int, sizes: list[int], seconds: float) -> dict:
    port = launcher.free_port()
    processes = []
    for rank in range(n):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "gloo_all_reduce.py"), "--seconds", str(seconds),
                   *map(str, sizes)]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        sys.exit("a rank of Gloo failed")
    return by_size(outputs[0])


def open_mpi(program: str, n: int, sizes: list[int], seconds: float, transport: str) -> dict:
    command = ["mpirun", "-np", str(n), "--allow-run-as-root", "--oversubscribe"]
    if transport == "tcp":
        command += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca", "pml", "ob1"]
    command += [program, str(seconds), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return by_size(done.stdout)


def loopback_bound(program: str, n: int, sizes: list[int], seconds: float) -> dict:
    done = subprocess.run([program, str(n), str(seconds), *map(str, sizes)], capture_output=True, text=True,
                          timeout=TIMEOUT_S, check=True)
    return by_size(done.stdout)


def build_bound_program(folder: str) -> str:
    program = str(pathlib.Path(folder, "loopback_bound"))
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++17", "-O3", "-o", program,
                    str(HERE / "loopback_bound.cpp")], check=True)
    return program


def build_mpi_program(folder: str) -> str | None:
    if not shutil.which("mpicxx") or not shutil.which("mpirun"):
        return None
    program = str(pathlib.Path(folder, "mpi_all_reduce"))
    subprocess.run(["mpicxx", "-O3", "-o", program, str(HERE / "mpi_all_reduce.cpp")], check=True)
    return program


def describe() -> dict:
    import torch

    mpi = shutil.which("mpirun") and subprocess.run(["mpirun", "--version"], capture_output=True, text=True,
                                                    check=True).stdout.splitlines()[0]
    return {"cpu": machine.cpu_name(), "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()}", "torch": torch.__version__,
            "mpi": mpi or "none"}


def compare(n: int, sizes: list[int], args, mpi_program: str | None, bound_program: str | None) -> list[dict]:
    rounds = {name: [] for name in ("bimetal", "gloo", "mpi", "bound")}
    for number in range(args.rounds):
        print(f"{n} ranks, round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        rounds["bimetal"].append(bimetal(n, sizes, args.seconds, args.transport, args.bench_option))
        rounds["gloo"].append(gloo(n, sizes, args.seconds))
        if mpi_program:
            rounds["mpi"].append(open_mpi(mpi_program, n, sizes, args.seconds, args.transport))
        if bound_program:
            rounds["bound"].append(loopback_bound(bound_program, n, sizes, args.seconds))
    rows = []
    for size in sizes:
        row = {"ranks": n, "bytes": size}
        for name, runs in rounds.items():
            if not runs:
                continue
            row[name] = {key: statistics.median(run[size][key] for run in runs)
                         for key in ("median_s", "mean_s", "cpu_s")}
        for name in ("gloo", "mpi", "bound"):
            if name in row:
                row[f"{name}_ratio"] = row[name]["median_s"] / row["bimetal"]["median_s"]
                row[f"{name}_cpu_ratio"] = row[name]["cpu_s"] / row["bimetal"]["cpu_s"]
        rows.append(row)
    return rows


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def print_rows(rows: list[dict]):
    def cell(row, name, key, scale):
        return f"{row[name][key] * scale:>10.4g}" if name in row else f"{'–':>10}"

    def ratio(row, key):
        return f"{row[key]:>8.2f}" if key in row else f"{'–':>8}"

    for row in rows:
        cpu = 1e9 / row["bytes"]
        print(f"{row['ranks']:>5} {size_text(row['bytes']):>8}"
              + "".join(cell(row, name, "median_s", 1e6) for name in ("bimetal", "gloo", "mpi"))
              + ratio(row, "gloo_ratio") + ratio(row, "mpi_ratio")
              + "".join(cell(row, name, "cpu_s", cpu) for name in ("bimetal", "gloo", "mpi"))
              + ratio(row, "gloo_cpu_ratio") + cell(row, "bound", "median_s", 1e6)
              + ratio(row, "bound_ratio"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, action="append", help="(default: 2 and 4)")
    parser.add_argument("--mib", type=float, action="append", help="sizes in MiB (default: 1, 4, 16, 64)")
    parser.add_argument("--transport", default="tcp", choices=["tcp", "auto"])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each size in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bench-option", action="append", default=[],
                        help="passed on to fabric_bench, as --bench-option=--dtype=bfloat16")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    sizes = [max(4, int(mib * MIB)) for mib in args.mib or [1, 4, 16, 64]]

    figures = {"machine": describe(), "transport": args.transport, "rounds": args.rounds, "rows": []}
    print(json.dumps(figures["machine"]))
    print(f"{'':14}{'median µs':>30}{'× faster':>16}{'CPU ns/B':>30}{'× less':>8}{'bound µs':>10}"
          f"{'of it':>8}")
    print(f"{'ranks':>5} {'size':>8}{'Bimetal':>10}{'Gloo':>10}{'MPI':>10}{'Gloo':>8}{'MPI':>8}"
          f"{'Bimetal':>10}{'Gloo':>10}{'MPI':>10}{'Gloo':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        mpi_program = build_mpi_program(folder)
        bound_program = build_bound_program(folder) if args.transport == "tcp" else None
        for n in args.ranks or [2, 4]:
            rows = compare(n, sizes, args, mpi_program, bound_program)
            print_rows(rows)
            figures["rows"] += rows
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
