#!/usr/bin/env python3
"""Requests and images per second of `bimetal serve`, with batches and without (--max-batch 1), asked by 1 and by 8 clients.

Usage: serving.py [--checkpoint DIR] [--images 1,16] [--seconds 3] [--rounds 3] [--report FILE.json]

The servers of both kinds run at the same time and are asked in turn, so that what else the machine does falls on both alike;
the medians of the rounds and their ratio are printed. Clients are processes that ask again once they are answered. Without
--checkpoint a `cnn` is trained for some steps on Fashion-MNIST (Debian's dataset-fashion-mnist, or --data).
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIMETAL = os.environ.get("BIMETAL", str(ROOT / "build" / "bimetal"))
KINDS = {"batches": [], "one by one": ["--max-batch", "1"]}


def ask(address, images, barrier, seconds, answers):
    """One client: how many of its requests were answered within the time."""
    import torch

    torch.set_num_threads(1)
    from bimetal.serving import Predictor

    samples = torch.randint(256, (images, 28, 28), dtype=torch.uint8)
    with Predictor(address) as predictor:
        predictor.predict(samples)
        barrier.wait(60)
        end = time.monotonic() + seconds
        answered = 0
        while time.monotonic() < end:
            predictor.predict(samples)
            answered += 1
    answers.put(answered)


def rate(address, clients, images, seconds):
    """Requests per second of all clients."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(clients), context.Queue()
    asking = [context.Process(target=ask, args=(address, images, barrier, seconds, answers)) for _ in range(clients)]
    for process in asking:
        process.start()
    total = sum(answers.get(timeout=120) for _ in asking)
    for process in asking:
        process.join(60)
    return total / seconds


class Server:
    def __init__(self, checkpoint, options):
        self.process = subprocess.Popen([BIMETAL, "serve", checkpoint, "--worker", "cpu:threads=1", *options],
                                        stdout=subprocess.PIPE, text=True)
        self.address = re.search(r" at (\S+);", self.process.stdout.readline())[1]

    def batches_and_requests(self):
        from bimetal.serving import Predictor

        with Predictor(self.address) as predictor:
            figures = predictor.figures()
        return figures["batches"], figures["requests"]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)


def trained(folder, data):
    job = folder / "job.toml"
    job.write_text(f'[model]\nname = "cnn"\n[data]\npath = "{data}"\n[train]\nsteps = 20\nevaluate = false\n'
                   f'[checkpoint]\ndir = "{folder / "checkpoints"}"\n')
    subprocess.run([BIMETAL, "train", job], check=True, stdout=subprocess.DEVNULL)
    return folder / "checkpoints"


def measure(checkpoint, arguments):
    results = []
    servers = {kind: Server(checkpoint, options) for kind, options in KINDS.items()}
    try:
        for clients in (1, 8):
            for images in arguments.images:
                rates = {kind: [] for kind in KINDS}
                before = servers["batches"].batches_and_requests()
                for _ in range(arguments.rounds):
                    for kind, server in servers.items():
                        rates[kind].append(rate(server.address, clients, images, arguments.seconds))
                after = servers["batches"].batches_and_requests()
                result = {"clients": clients, "images": images,
                          **{kind: statistics.median(values) for kind, values in rates.items()},
                          "requests_per_batch": (after[1] - before[1]) / (after[0] - before[0]),
                          "ratios": [a / b for a, b in zip(*rates.values())]}
                result["ratio"] = statistics.median(result["ratios"])
                results.append(result)
                show(result)
    finally:
        for server in servers.values():
            server.end()
    return results


def show(result):
    images = result["images"]
    print(f"{result['clients']} client{'s' if result['clients'] > 1 else ' '}  {images:>4} image{'s' if images > 1 else ' '} a request   "
          f"batches: {result['batches']:7.0f} requests/s {result['batches'] * images:8.0f} images/s "
          f"({result['requests_per_batch']:.1f} requests each)   "
          f"one by one: {result['one by one']:7.0f} requests/s {result['one by one'] * images:8.0f} images/s   "
          f"ratio {result['ratio']:.2f} ({min(result['ratios']):.2f} to {max(result['ratios']):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint")
    parser.add_argument("--data", default="")
    parser.add_argument("--images", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16])
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "build" / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:1] + [os.environ.get("PYTHONPATH", "")])
    described = machine.describe(BIMETAL)
    print(json.dumps(described), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = arguments.checkpoint or trained(pathlib.Path(folder), arguments.data)
        results = measure(checkpoint, arguments)
    if arguments.report:
        arguments.report.write_text(json.dumps({"machine": described, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
