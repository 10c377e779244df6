#!/usr/bin/env python3
"""The cost to a job of people who look at the page: the time of a step with listeners beside that without, in one run.

One worker on one thread trains steps of about 5 ms (--hidden, --batch). In turn, --windows times each, --listeners connections read
the page's events, as browsers do, for --seconds, and nobody does. A step's time is that of the job's own clock, which counts training
alone, from the job's status at a window's begin and end. Printed are the medians and their ratio (1: listeners cost nothing).

With --memory STEPS it is rank 0's memory in a run of so many steps: the process's own memory (RssAnon, VmSwap), a tenth
of the time after its begin, a tenth before its end, and at most, with a page that one listener follows, and of a job
without one beside it. page_costs_mb is their difference.

    .venv/bin/python bench/page.py                      about a minute
    .venv/bin/python bench/page.py --memory 1000000     a quarter of an hour
"""

import argparse
import concurrent.futures
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


def rank_below(starter):
    """The rank's process."""
    while True:
        for file in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(file.read_text().rpartition(")")[2].split()[1]) == starter:
                    return int(file.parent.name)
        time.sleep(0.1)


def own_memory(pid):
    """Bytes, those that are swapped out included; None when it has ended."""
    with contextlib.suppress(OSError):
        if found := re.findall(r"(?:RssAnon|VmSwap):\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()):
            return 1024 * sum(map(int, found))
    return None


def write_job(args, folder, monitor, **train):
    return job_file.write_job(folder / f"{monitor['page']}.toml", model={"name": "mlp", "hidden": args.hidden}, data={"path": str(folder / "data")},
                              train={"epochs": 1_000_000, "global_batch": args.batch, "learning_rate": 1e-4, "evaluate": False, **train},
                              checkpoint={"dir": ""}, monitor=monitor)


@contextlib.contextmanager
def running(args, folder, job):
    """(the process, the monitor's address; empty where the job has none)"""
    command = [args.bimetal, "train", job, "--worker", "cpu:threads=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            address = ""
            for line in process.stdout:
                if found := re.search(r"monitor at (\S+);", line):
                    address = found[1]
                if address or line.startswith("training"):
                    break
            else:
                raise SystemExit("the job has ended")
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process, address
        finally:
            process.terminate()


def memory_of(args, folder, monitor):
    """The memory of rank 0: a tenth of the time after its begin, and at its end."""
    seen = []
    with contextlib.ExitStack() as stack:
        process, address = stack.enter_context(running(args, folder, write_job(args, folder, monitor, steps=args.memory)))
        if address:
            stack.enter_context(Listener(address))
        rank = rank_below(process.pid)
        while process.poll() is None:
            if (now := own_memory(rank)) is not None:
                seen.append(now / 1e6)
            time.sleep(0.2)
    early, late = (statistics.median(seen[int(part * len(seen)):][:5]) for part in (0.1, 0.9))  # in the end it frees its data
    return {"early_mb": round(early, 1), "late_mb": round(late, 1), "growth_mb": round(late - early, 1), "most_mb": round(max(seen), 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bimetal", default=BIMETAL)
    parser.add_argument("--listeners", type=int, default=5)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--memory", type=int, metavar="STEPS", help="measure that instead")
    args = parser.parse_args()
    args.hidden, args.batch = args.hidden or (4 if args.memory else 550), args.batch or (8 if args.memory else 64)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_images(folder / "data", 12_800)
        if args.memory:
            monitors = {"page": {"listen": "127.0.0.1:0", "page": "on", "trackers": []}, "none": {"page": "off", "trackers": []}}
            with concurrent.futures.ThreadPoolExecutor() as both:
                runs = {way: both.submit(memory_of, args, folder, monitor) for way, monitor in monitors.items()}
            found = {way: run.result() for way, run in runs.items()}
            found["page_costs_mb"] = {at: round(found["page"][f"{at}_mb"] - found["none"][f"{at}_mb"], 1) for at in ("late", "most")}
        else:
            with running(args, folder, write_job(args, folder, {"listen": "127.0.0.1:0", "page": "on"})) as (_, address):
                found = measure(args, address)
        print(json.dumps({**machine.describe(args.bimetal), **found}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
