"""A worker behind a slow link to its parameter server: seconds per step, what of them the worker waits for parameters,
and bytes per step, for several ways to bring them.

Two network namespaces joined by a link of --mbit (root is needed): the server in one, the worker in the other. (The worker
that the server's machine must start with is killed when the other one has joined.) A way is settings of the job, comma-separated, e.g. --way compression.parameters=int8;
--beside runs another build's program, which comes first.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from link import Hosts
from machine import describe
from ranks import BIMETAL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import all_pids, ranks_below, write_dataset  # noqa: E402

PORT = 29577
TIMEOUT_S = 600


def report_of(program, hosts, folder, options, settings):
    """The report of one job."""
    token, report = folder / "token", folder / "run.json"
    token.unlink(missing_ok=True)
    subprocess.run([program, "token", token], check=True, capture_output=True)
    address = f"{hosts.addresses[0]}:{PORT}"
    serve = [program, "train", folder / "job.toml", "--listen", address, "--token-file", token,
             "--worker", "cpu:threads=1", "--report", report]
    for setting in settings:
        serve += ["--set", setting]
    join = [program, "join", address, "--token-file", token, "--worker", "cpu:threads=1"]
    # Namespaces share the machine's memory: hosts would not.
    env = os.environ | {"OMP_NUM_THREADS": "1", "BIMETAL_TRANSPORT": "tcp"}
    started, out = [], folder / "out"
    try:
        with open(out, "w") as file:
            for name, command in zip(hosts.names, (serve, join)):
                started.append(subprocess.Popen(hosts.on(name, command), env=env, stdout=file, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(r"worker \d .* has joined", out.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(ranks_below(started[0].pid, all_pids())[0], signal.SIGKILL)
        started[0].wait(TIMEOUT_S)
    finally:
        for process in started[::-1]:
            if process.poll() is None:
                process.terminate()
            process.wait(30)
    if started[0].returncode != 0:
        raise RuntimeError(out.read_text())
    return json.loads(report.read_text())


def figures_of(report):
    """Seconds per step of the second half, and what of a step the far worker computes and waits."""
    points = report["history"]
    middle = points[len(points) // 2]
    steps = points[-1]["step"] - middle["step"]
    far = max(report["workers"], key=lambda worker: worker["share"])
    alone = far["share"] * report["steps"]
    return {"step_s": (points[-1]["elapsed_s"] - middle["elapsed_s"]) / steps, "compute_s": far["compute_s"] / alone,
            "wait_s": far["wait_s"] / alone, "bytes": report["bytes_sent"] / report["steps"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", metavar="PROGRAM", help="another build's bimetal")
    parser.add_argument("--way", action="append", default=[], metavar="KEY=VALUE[,…]")
    options = parser.parse_args()
    ways = [("beside", options.beside, [])] if options.beside else []
    ways += [(way or "as it is", BIMETAL, [s for s in way.split(",") if s]) for way in ["", *options.way]]
    print(describe(BIMETAL) | {"mbit": options.mbit, "model": options.model, "batch": options.batch}, flush=True)
    found = {name: [] for name, _, _ in ways}
    with tempfile.TemporaryDirectory() as name, Hosts() as hosts:
        folder = pathlib.Path(name)
        write_dataset(folder / "data", train=8 * options.batch)
        hidden = f"hidden = {options.hidden}" if options.hidden else ""
        (folder / "job.toml").write_text(f"""
[model]
name = "{options.model}"
{hidden}
[data]
path = "{folder / 'data'}"
[train]
epochs = 1000
steps = {options.steps}
global_batch = {options.batch}
learning_rate = 0.01
evaluate = false
[parallel]
mode = "server"
""")
        hosts.limit(options.mbit * 1_000_000)
        for _ in range(options.rounds):
            for name, program, settings in ways:
                found[name].append(figures_of(report_of(program, hosts, folder, options, settings)))
                print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found[name][-1].items()), flush=True)
    first = ways[0][0]
    for name, _, _ in ways[1:]:
        ratios = [ours["step_s"] / theirs["step_s"] for ours, theirs in zip(found[name], found[first])]
        print(f"{name} ÷ {first}, seconds per step: {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
