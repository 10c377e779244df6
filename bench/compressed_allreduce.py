#!/usr/bin/env python3
"""All-reduce between two hosts on a slow link: how near the link's bound, and how far beyond it when
compressed. Needs root, for network namespaces and tc.

The bound is that of any exact all-reduce: 2(n-1)/n bytes of each byte over the link's rate. Speed-up
is against that bound, not against what was measured without compression. Schemes are measured in
turn, `--rounds` times, and the median is taken.

Usage: compressed_allreduce.py [--program PATH] [--rates 100,1000] [--sizes 4mb,64mb] [--rounds 3]
"""

import argparse
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile

import link
from finish import outputs_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCHEMES = {
    "none": [],
    "bfloat16": ["--compress", "bfloat16"],
    "int8": ["--compress", "int8"],
    "int4": ["--compress", "int4"],
    "sign": ["--compress", "sign"],
    "topk 0.1 %": ["--compress", "topk", "--density", "0.001"],
    "powersgd 4": ["--compress", "powersgd", "--rank", "4"],
}
GOALS = {"none": 0.95, "int8": 3.5, "powersgd 4": 20}
TIMEOUT_S = 80


def measure(hosts, program, token, scheme, size, seconds):
    """Median seconds of one all-reduce of `size`, and its bytes."""
    processes = []
    try:
        for rank, name in enumerate(hosts.names):
            env = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29500", "BIMETAL_TOKEN_FILE": token,
                "BIMETAL_TRANSPORT": "tcp"}
            command = [program, "allreduce", "--min", size, "--max", size, "--seconds", str(seconds),
                       "--json", *SCHEMES[scheme]]
            processes.append(subprocess.Popen(hosts.on(name, command), env=env, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
    outputs = outputs_of(processes, f"{scheme}, {size}", TIMEOUT_S)
    result = json.loads(outputs[0])["results"][0]
    return result["p50_us"] * 1e-6, result["bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build" / "fabric_bench"))
    parser.add_argument("--rates", default="100,1000", help="Mbit/s")
    parser.add_argument("--sizes", default="4mb,64mb")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each size, scheme and round")
    options = parser.parse_args()

    schemes = options.schemes.split(",")
    missed = 0
    with tempfile.TemporaryDirectory() as folder, link.Hosts() as hosts:
        token = pathlib.Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32) + "\n")
        for rate in (int(float(rate) * 1e6) for rate in options.rates.split(",")):
            hosts.limit(rate)
            for size in options.sizes.split(","):
                seconds = {scheme: [] for scheme in schemes}
                for _ in range(options.rounds):
                    for scheme in schemes:
                        span, bytes_ = measure(hosts, options.program, str(token), scheme, size,
                                               options.seconds)
                        seconds[scheme].append(span)
                bound = bytes_ * 8 / rate  # 2(n-1)/n is 1 for two
                print(f"{rate / 1e6:g} Mbit/s, {size}: bound {bound * 1e3:.2f} ms")
                for scheme in schemes:
                    span = statistics.median(seconds[scheme])
                    ratio, goal = bound / span, GOALS.get(scheme)
                    missed += goal is not None and ratio < goal
                    verdict = "" if goal is None else f"  (to reach: {goal})"
                    print(f"  {scheme:12} {span * 1e3:9.2f} ms  {ratio:7.2f} × the bound{verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
