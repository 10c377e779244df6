"""Parameter servers over slow links: images/s and bytes of 8 workers, each on a link of 100 Mbit/s, with two
servers, as a share of what the links allow. Needs root: hosts are network namespaces on this machine.

A worker receives the parameters and sends their gradients once for each of its leases: P bytes each way. In
`sync` a step's parameters exist only after the last gradients of the step before, so that at most one direction
is busy at a time but for what the servers can apply while others still send: its bound is 2·P/B for a step.
`bounded` and `async` may fill both directions: their bound is P/B for each lease of a worker. Computing is not
in the bounds, nor are the headers of Ethernet, IP and TCP (about 5 % of the rate).
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from machine import describe
from parameter_server import settled_rate
from ranks import BIMETAL, ROOT
from shaped_network import Network

JOB = ROOT / "examples" / "fashion_mnist.toml"
MBIT = 1_000_000
PORT = 29560


def report_of(network, consistency, prefetch, options):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        token, report = pathlib.Path(folder, "token"), pathlib.Path(folder, "run.json")
        subprocess.run([BIMETAL, "token", token], check=True, capture_output=True)
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        address = f"{network.address(0)}:{PORT}"
        overrides = ["parallel.mode=server", "servers.count=2", f"servers.consistency={consistency}",
                     f"servers.prefetch={prefetch}", "fabric.transport=tcp",
                     f"model.hidden={options.hidden}", f"train.global_batch={options.batch}",
                     f"train.steps={options.steps}", "train.epochs=1000", "train.evaluate=false",
                     "checkpoint.dir=''", *options.set]
        command = [BIMETAL, "train", str(JOB), "--listen", address, "--token-file", token, "--worker", "none",
                   "--report", report, *(part for override in overrides for part in ("--set", override))]
        first = subprocess.Popen(network.command(0, command), env=env, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        for host in range(1, len(network.rates)):
            command = [BIMETAL, "join", address, "--token-file", token, "--worker", "cpu:threads=1"]
            joined = subprocess.Popen(network.command(host, command), env=env, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            stack.callback(joined.wait, 60)
        out, _ = first.communicate(timeout=900)
        if first.returncode != 0:
            raise RuntimeError(out)
        return json.loads(report.read_text())


def parameter_bytes(hidden):
    """The size of the example's CNN: two convolutions and two fully connected layers, float32."""
    hidden = hidden or 128
    return 4 * ((9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 49 + 1) * hidden + (hidden + 1) * 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--mbit", type=float, default=100)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model's hidden layer")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--consistency", action="append", choices=["sync", "bounded", "async"])
    parser.add_argument("--prefetch", nargs="+", default=["off", "auto"], choices=["off", "auto", "on"],
                        help="servers.prefetch of bounded and async, measured in turn")
    parser.add_argument("--set", action="append", default=[], help="a key of the job: section.key=value")
    options = parser.parse_args()
    print(describe(BIMETAL))
    size = parameter_bytes(options.hidden)
    one_way = size / (options.mbit * MBIT / 8)
    print(f"{options.workers} workers on {options.mbit:g} Mbit/s, {size / 1e6:.1f} MB of parameters: "
          f"{one_way:.3f} s each way", flush=True)
    for consistency in options.consistency or ["sync", "bounded", "async"]:
        bound = one_way * (2 if consistency == "sync" else 1)
        ways = options.prefetch if consistency != "sync" else ["off"]
        shares = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                shares[way].append(measure(consistency, way, bound, options))
        for way in ways:
            print(f"{consistency:>8}, prefetch {way}: {statistics.median(shares[way]):.3f} of the links' bound", flush=True)


def measure(consistency, prefetch, bound, options):
    rates = [int(options.mbit * MBIT * options.workers * 1.25)] + [int(options.mbit * MBIT)] * options.workers
    with Network(rates) as network:
        report = report_of(network, consistency, prefetch, options)
    step = options.batch / settled_rate(report)
    computing = max(w["compute_s"] for w in report["workers"]) / report["steps"]
    print(f"{consistency:>8}, prefetch {prefetch}: {step:.3f} s per step of all workers, {computing:.3f} s of it computing; "
          f"bound {bound:.3f} s; staleness {report['server']['staleness_mean']:.2f}", flush=True)
    return bound / step


if __name__ == "__main__":
    main()
