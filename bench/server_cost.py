"""The cost of a step with a parameter server for each process: seconds of CPU and page faults, per step.

A job of one server and --workers workers on this machine, synchronous, the model's size by --hidden (4632: 25 million
parameters), few samples per step, so that moving and summing outweigh computing. Every way of --way runs in turn in each
round, with few steps and with many: the difference is the steps' own. A way is its job's settings, comma-separated, e.g.
--way compression.parameters=float16; --beside runs another build's program, too.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from machine import describe
from ranks import BIMETAL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import all_pids, ranks_below, write_dataset  # noqa: E402

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TIMEOUT_S = 300
LOOK_S = 0.01
# Fields of /proc/PID/stat after the name: minor faults, user time, system time.
FAULTS, USER, SYSTEM = 7, 11, 12


def usage(pid, task=None):
    """User and system CPU seconds and page faults of a process, or of one thread of it."""
    path = f"/proc/{pid}/stat" if task is None else f"/proc/{pid}/task/{task}/stat"
    fields = pathlib.Path(path).read_text().rsplit(")", 1)[1].split()
    return [int(fields[USER]) * TICK_S, int(fields[SYSTEM]) * TICK_S, int(fields[FAULTS])]


def run(program, job, steps, workers, settings):
    """Each rank's use over its life: all of it, the main thread's part; and the job's seconds."""
    command = [program, "train", job, *["--worker", "cpu:threads=1"] * workers]
    for setting in (f"train.steps={steps}", *settings):
        command += ["--set", setting]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        used, ranks, begun, deadline = {}, {}, time.monotonic(), time.monotonic() + TIMEOUT_S
        try:
            while process.poll() is None:
                if len(ranks) <= workers:
                    ranks = ranks_below(process.pid, all_pids())
                for rank, pid in ranks.items():
                    try:
                        used[rank] = usage(pid), usage(pid, pid)
                    except OSError:
                        pass  # it has ended
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(map(str, command))}: not done within {TIMEOUT_S} s")
                time.sleep(LOOK_S)
        finally:
            process.kill()
        out.seek(0)
        text = out.read()
    if process.returncode != 0:
        raise RuntimeError(text)
    return used, time.monotonic() - begun


def per_step(program, job, options, settings):
    """Figures of each role per step."""
    few, few_s = run(program, job, options.few, options.workers, settings)
    many, many_s = run(program, job, options.few + options.steps, options.workers, settings)
    figures = {"wall": (many_s - few_s) / options.steps}
    roles = {"server": [options.workers], "worker": list(range(options.workers))}
    for role, ranks in roles.items():
        for part, name in enumerate(("all", "main")):
            sums = [sum(many[rank][part][i] - few[rank][part][i] for rank in ranks) / len(ranks) / options.steps
                    for i in range(3)]
            figures[role, name] = sums
    return figures


def show(figures):
    server, worker, main = figures["server", "all"], figures["worker", "all"], figures["worker", "main"]
    return (f"server {server[0] + server[1]:.3f} s ({server[1]:.3f} in the kernel, {server[2]:.0f} faults); "
            f"worker {worker[0] + worker[1]:.3f} s ({worker[1]:.3f} in the kernel, {worker[2]:.0f} faults), "
            f"of these beside computing {worker[0] + worker[1] - main[0] - main[1]:.3f} s; {figures['wall']:.3f} s a step")


def cpu(figures, role):
    return sum(figures[role, "all"][:2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4632, help="the model's width (default: 25 million parameters)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step (default 8)")
    parser.add_argument("--steps", type=int, default=30, help="that are measured (default 30)")
    parser.add_argument("--few", type=int, default=5, help="steps before these (default 5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", metavar="PROGRAM", help="another build's bimetal, which comes first")
    parser.add_argument("--way", action="append", default=[], metavar="KEY=VALUE[,…]", help="of this build's job")
    options = parser.parse_args()
    ways = [("beside", options.beside, [])] if options.beside else []
    ways += [(way or "as it is", BIMETAL, [s for s in way.split(",") if s]) for way in ["", *options.way]]
    print(describe(BIMETAL) | {"hidden": options.hidden, "workers": options.workers, "batch": options.batch}, flush=True)
    found = {name: [] for name, _, _ in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_dataset(folder / "data")
        job = folder / "job.toml"
        job.write_text(f"""
[model]
name = "mlp"
hidden = {options.hidden}
[data]
path = "{folder / 'data'}"
[train]
epochs = 1000
global_batch = {options.batch}
learning_rate = 0.001
momentum = 0.9
evaluate = false
[parallel]
mode = "server"
""")
        for _ in range(options.rounds):
            for name, program, settings in ways:
                found[name].append(per_step(program, job, options, settings))
                print(f"{name}: {show(found[name][-1])}", flush=True)
    first = ways[0][0]
    for name, _, _ in ways[1:]:
        for role in ("server", "worker"):
            ratios = [cpu(ours, role) / cpu(theirs, role) for ours, theirs in zip(found[name], found[first])]
            print(f"{name} ÷ {first}, CPU of the {role}: {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
