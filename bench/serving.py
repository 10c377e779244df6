#!/usr/bin/env python3
"""Requests and images per second of `bimetal serve`, with batches and without (--max-batch 1), asked by 1 and by 8 clients.

Usage: serving.py [--checkpoint DIR | --model cnn] [--delay-ms 0] [--images 1,16] [--seconds 3] [--rounds 3] [--report FILE.json]

The servers of both kinds run at the same time and are asked in turn, so that what else the machine does falls on both alike;
the medians of the rounds and their ratio are printed. Clients are processes that ask again once they are answered. Without
--checkpoint a model is trained for some steps on Fashion-MNIST (Debian's dataset-fashion-mnist, or --data).
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


def ask(addresses, images, barrier, arguments, answers):
    """One client: how many of its requests each server answered within the time, round by round."""
    import torch

    torch.set_num_threads(1)
    from bimetal.serving import Predictor

    samples = torch.randint(256, (images, 28, 28), dtype=torch.uint8)
    for _ in range(arguments.rounds):
        for kind, address in addresses.items():
            with Predictor(address) as predictor:
                predictor.predict(samples)
                barrier.wait(120)
                end = time.monotonic() + arguments.seconds
                answered = 0
                while time.monotonic() < end:
                    predictor.predict(samples)
                    answered += 1
            answers.put((kind, answered))
            barrier.wait(120)


def rates_of(servers, clients, images, arguments):
    """Requests per second of all clients together, by kind of server and round."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(clients), context.Queue()
    addresses = {kind: server.address for kind, server in servers.items()}
    asking = [context.Process(target=ask, args=(addresses, images, barrier, arguments, answers)) for _ in range(clients)]
    for process in asking:
        process.start()
    rates = {kind: [0.0] * arguments.rounds for kind in servers}
    for i in range(arguments.rounds * len(servers) * clients):  # the barrier keeps the rounds apart
        kind, answered = answers.get(timeout=300)
        rates[kind][i // (len(servers) * clients)] += answered / arguments.seconds
    for process in asking:
        process.join(60)
    return rates


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


def trained(folder, arguments):
    job = folder / "job.toml"
    job.write_text(f'[model]\nname = "{arguments.model}"\n[data]\npath = "{arguments.data}"\n'
                   f'[train]\nsteps = 20\nglobal_batch = 64\nevaluate = false\n[checkpoint]\ndir = "{folder / "checkpoints"}"\n')
    subprocess.run([BIMETAL, "train", job], check=True, stdout=subprocess.DEVNULL)
    return folder / "checkpoints"


def measure(checkpoint, arguments):
    results = []
    kinds = {"batches": ["--max-delay-ms", str(arguments.delay_ms)], "one by one": ["--max-batch", "1"]}
    servers = {kind: Server(checkpoint, options) for kind, options in kinds.items()}
    try:
        for clients in (1, 8):
            for images in arguments.images:
                before = servers["batches"].batches_and_requests()
                rates = rates_of(servers, clients, images, arguments)
                after = servers["batches"].batches_and_requests()
                result = {"clients": clients, "images": images,
                          **{kind: statistics.median(values) for kind, values in rates.items()},
                          "requests_per_batch": (after[1] - before[1]) / (after[0] - before[0]),
                          "ratios": [a / b for a, b in zip(rates["batches"], rates["one by one"])]}
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
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--delay-ms", type=float, default=0, help="--max-delay-ms of the server with batches")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "build" / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:1] + [os.environ.get("PYTHONPATH", "")])
    described = machine.describe(BIMETAL)
    print(json.dumps(described), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = arguments.checkpoint or trained(pathlib.Path(folder), arguments)
        results = measure(checkpoint, arguments)
    if arguments.report:
        arguments.report.write_text(json.dumps({"machine": described, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
