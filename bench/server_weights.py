"""The gain by weights from measured bandwidth: seconds per step with equal parts of the parameters and with parts as
the servers' links carry, side by side. Two servers and two workers, each on a host of its own (network namespaces:
needs root), server 1 on a slower link.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile

from machine import describe
from parameter_server import settled_rate
from ranks import BIMETAL, ROOT
from shaped_network import Network

JOB = ROOT / "examples" / "fashion_mnist.toml"
MBIT = 1_000_000
PORT = 29562
WORKERS = 2


def run(network, servers, options):
    """The report, and the weights that were measured."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        token, report = pathlib.Path(folder, "token"), pathlib.Path(folder, "run.json")
        subprocess.run([BIMETAL, "token", token], check=True, capture_output=True)
        address = f"{network.address(0)}:{PORT}"
        # Namespaces of one kernel share memory, machines do not.
        env = os.environ | {"OMP_NUM_THREADS": "1", "BIMETAL_TRANSPORT": "tcp"}
        overrides = ["parallel.mode=server", f"servers.count={servers}", f"model.hidden={options.hidden}",
                     f"train.global_batch={options.batch}", f"train.steps={options.steps}", "train.epochs=1000",
                     "train.evaluate=false", "checkpoint.dir=''"]

        def start(host, *words, **pipes):
            return subprocess.Popen(network.command(host, [BIMETAL, *words]), env=env, text=True, **pipes)

        first = start(0, "train", str(JOB), "--listen", address, "--token-file", token, "--worker", "none",
                      "--servers-here", "1", "--report", report, *(part for word in overrides for part in ("--set", word)),
                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        for host, words in [(1, ["--server"])] + [(2 + i, ["--worker", "cpu:threads=1"]) for i in range(WORKERS)]:
            stack.callback(start(host, "join", address, "--token-file", token, *words, **quiet).wait, 60)
        out, _ = first.communicate(timeout=900)
        if first.returncode != 0:
            raise SystemExit(out)
        weights = re.search(r"parameters as (.*)", out)
        return json.loads(report.read_text()), weights[1] if weights else "1 : 1"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=200, help="rate of server 0's link and the workers' (default 200)")
    parser.add_argument("--slow", type=float, default=50, help="rate of server 1's link, Mbit/s (default 50)")
    parser.add_argument("--hidden", type=int, default=512, help="width of the model's hidden layer")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    print(describe(BIMETAL))
    rates = [int(rate * MBIT) for rate in (options.mbit, options.slow, *[options.mbit] * WORKERS)]
    for _ in range(options.rounds):
        seconds = {}
        for name, servers in (("equal parts", "[1, 1]"), ("measured", "2")):
            with Network(rates) as network:
                report, weights = run(network, servers, options)
            seconds[name] = options.batch / settled_rate(report)
            print(f"{name:>12}: {weights}, {seconds[name]:.3f} s per step", flush=True)
        print(f"{'measured ÷ equal':>12}: {seconds['measured'] / seconds['equal parts']:.2f}", flush=True)


if __name__ == "__main__":
    main()
