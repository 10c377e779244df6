#!/usr/bin/env python3
"""What people who look at the page cost a job: the time of a step with listeners beside that without, in one run.

One worker on one thread trains steps of about 5 ms (--hidden, --batch). In turn, --windows times each, --listeners connections read
the page's events, as browsers do, for --seconds, and nobody does. A step's time is that of the job's own clock, which counts training
alone, from the job's status at a window's begin and end. Printed are the medians and their ratio (1: listeners cost nothing).

    .venv/bin/python bench/page.py        about a minute
"""

import argparse
import contextlib
import json
import pathlib
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import job_file
import machine
from ranks import BIMETAL


def write_images(folder, images):
    folder.mkdir()
    for name in ("train", "t10k"):
        pixels = bytes((i * 7) % 251 for i in range(images * 784))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, images, 28, 28) + pixels)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, images) + bytes(i % 10 for i in range(images)))


class Listener:
    """Context manager: reads the page's events until it ends."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(f"GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        self.read = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with contextlib.suppress(OSError):
            while got := self._socket.recv(1 << 16):
                self.read += len(got)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def status(address):
    with urllib.request.urlopen(f"http://{address}/status") as answer:
        return json.load(answer)


def step_ms(address, seconds):
    before = status(address)
    time.sleep(seconds)
    after = status(address)
    return 1e3 * (after["elapsed_s"] - before["elapsed_s"]) / (after["step"] - before["step"])


def measure(args, address):
    while status(address)["step"] < 200:
        time.sleep(0.1)
    times = {"with": [], "without": []}
    for window in range(args.windows):
        for way in ("with", "without") if window % 2 else ("without", "with"):
            with contextlib.ExitStack() as stack:
                listeners = [stack.enter_context(Listener(address)) for _ in range(args.listeners if way == "with" else 0)]
                time.sleep(0.3)  # the history, which each gets first
                times[way].append(step_ms(address, args.seconds))
            if any(listener.read < 1000 for listener in listeners):
                raise SystemExit("a listener has read nothing: how many may there be?")
    medians = {way: statistics.median(ms) for way, ms in times.items()}
    return {"step_ms": {way: round(ms, 3) for way, ms in medians.items()}, "ratio": round(medians["without"] / medians["with"], 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bimetal", default=BIMETAL)
    parser.add_argument("--listeners", type=int, default=5)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--hidden", type=int, default=550)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_images(folder / "data", 12_800)
        job = job_file.write_job(folder / "job.toml", model={"name": "mlp", "hidden": args.hidden}, data={"path": str(folder / "data")},
                                 train={"epochs": 1_000_000, "global_batch": args.batch, "learning_rate": 1e-4, "evaluate": False},
                                 checkpoint={"dir": ""}, monitor={"listen": "127.0.0.1:0", "page": "on"})
        command = [args.bimetal, "train", job, "--worker", "cpu:threads=1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
            try:
                for line in process.stdout:
                    if found := re.search(r"monitor at (\S+);", line):
                        break
                else:
                    raise SystemExit("the job has ended")
                threading.Thread(target=process.stdout.read, daemon=True).start()
                print(json.dumps({**machine.describe(args.bimetal), **measure(args, found[1])}, indent=1))
            finally:
                process.terminate()


if __name__ == "__main__":
    sys.exit(main())
