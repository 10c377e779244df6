"""What the loss of a worker and the coming of another cost: Bimetal's elastic jobs beside torchft, in turn.

Three workers of one thread each, on this machine, train the same MLP with Adam. In each round and on each side

    loss      one of the three is killed (SIGKILL) at a random moment of a step. Counted is the time from there to the end
              of the first step that the others have made by themselves, less the median step before
    newcomer  once the others are under way again, a new worker's process is started. Counted is the time from there to
              the end of the first step that its gradients are part of

    plain     before the rounds: the rate of a job without events that may change its workers ÷ that of one that may not,
              from jobs of the same three workers in turn (--plain-steps, 0: none)

Bimetal's steps are read from its monitor, torchft's from a file that each replica writes. torchft's lighthouse has the
short time-outs that --join-ms, --tick-ms and --silence-ms say; its own are 60 s, 100 ms and 5 s.

    .venv/bin/python bench/elastic.py                            about 20 s a round
    .venv/bin/python bench/elastic.py --parameters 100e6         wants 8 GB of memory

Where there is no folder --torchft, pip installs torchft into one that is deleted in the end.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from job_file import hidden_for, write_job
from machine import describe
from ranks import BIMETAL, ROOT, free_port

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import all_pids, ranks_below, write_dataset  # noqa: E402

TORCHFT = ["torchft==0.2.0"]
ITS_NEEDS = ["opentelemetry-api>=1.39.0", "opentelemetry-sdk>=1.39.0", "opentelemetry-exporter-otlp-proto-http>=1.39.0"]
WORKERS = 3
WARM_UP, MEASURED = 10, 20  # steps before a loss
LOOK_S = 0.01
PATIENCE_S = 180


class Side:
    """The processes of one side's job, which end with it."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.processes, self.killed = [], []
        folder.mkdir()

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, *_):
        for process in self.processes + self.killed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command):
        with open(self.folder / f"{len(self.processes + self.killed)}.out", "wb") as output:
            self.processes.append(subprocess.Popen(
                [str(part) for part in command], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, env=self.environment()))

    def environment(self):
        return os.environ | {"OMP_NUM_THREADS": "1"}

    def output(self, number):
        return (self.folder / f"{number}.out").read_text(errors="replace")

    def wait_for(self, condition, what):
        """What `condition` returns, once that is something."""
        end = time.monotonic() + PATIENCE_S
        while (found := condition()) is None:
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > end:
                said = "".join(f"\n{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.out")))
                raise SystemExit(f"{self.name}: {what}: {'a process has ended' if ended else f'not within {PATIENCE_S} s'}{said}")
            time.sleep(0.02)
        return found

    def round(self):
        """Seconds of a step, of a loss and of a newcomer."""
        times = self.wait_for(self.warm_up, "the first steps")
        step = statistics.median(later - earlier for earlier, later in zip(times[-MEASURED:], times[-MEASURED + 1:]))
        time.sleep(random.uniform(0, step))
        victim = self.processes[-1]
        killed = time.monotonic()
        self.kill(victim)
        self.processes.remove(victim)
        self.killed.append(victim)
        loss = self.first_step_of(WORKERS - 1, killed) - killed - step
        time.sleep(self.options.pause)
        started = time.monotonic()
        self.start_another()
        return step, loss, self.first_step_of(WORKERS, started) - started

    def warm_up(self):
        times = self.step_times()
        return times if len(times) >= WARM_UP + MEASURED else None


class Bimetal(Side):
    name = "Bimetal"

    def begin(self):
        options, folder = self.options, self.folder
        write_dataset(folder / "data", train=100 * options.batch)
        job = write_job(folder / "job.toml", model={"name": "mlp", "hidden": hidden_for(options.parameters)},
                        data={"path": str(folder / "data")},
                        train={"epochs": 1_000_000, "global_batch": options.batch, "optimizer": "adam", "learning_rate": 1e-4,
                               "evaluate": False},
                        checkpoint={"dir": ""}, elastic={"min_workers": 1})
        self.token = folder / "token"
        subprocess.run([BIMETAL, "token", self.token], check=True, capture_output=True)
        self.address, self.monitor = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.ends = {}   # of steps, by their numbers
        self.after = {}  # by a number of workers: the last step before they went on
        self.start([BIMETAL, "train", job, "--listen", self.address, "--world-size", WORKERS, "--token-file", self.token,
                    "--monitor", self.monitor, "--worker", "cpu:threads=1"])
        self.wait_for(lambda: "bimetal join" in self.output(0) or None, "its start")
        for _ in range(WORKERS - 1):
            self.start_another()
        self.over = threading.Event()
        self.watching = threading.Thread(target=self.watch, daemon=True)
        self.watching.start()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.over.set()
        self.watching.join()

    def start_another(self):
        self.start([BIMETAL, "join", self.address, "--token-file", self.token, "--worker", "cpu:threads=1"])

    def kill(self, joined):
        """The worker itself, and not the command that has started it."""
        pid, = ranks_below(joined.pid, all_pids()).values()
        os.kill(pid, signal.SIGKILL)

    def watch(self):
        """The monitor says how long ago the last step ended, so that asking a few times a step is exact, and costs little."""
        while not self.over.wait(LOOK_S):
            try:
                with urllib.request.urlopen(f"http://{self.monitor}/status", timeout=5) as page:
                    status = json.load(page)
            except OSError:
                continue  # it has not begun
            if status["step"]:
                self.ends.setdefault(status["step"], time.monotonic() - status["since_step_s"])
            for notice in status["notices"]:
                if found := re.match(r"(\d+) workers? goe?s? on from step (\d+)", notice):
                    self.after.setdefault(int(found[1]), int(found[2]))

    def step_times(self):
        return list(self.ends.values())

    def first_step_of(self, workers, _):
        def found():
            if workers not in self.after:
                return None
            return min((end for step, end in list(self.ends.items()) if step > self.after[workers]), default=None)
        return self.wait_for(found, f"a step of {workers} workers")


class Torchft(Side):
    name = "torchft"
    script = ROOT / "bench" / "torchft_worker.py"

    def environment(self):
        return super().environment() | {"PYTHONPATH": str(self.options.torchft), "RUST_LOG": "off"}

    def begin(self):
        options = self.options
        self.start([sys.executable, self.script, "--lighthouse", "--join-ms", options.join_ms, "--tick-ms", options.tick_ms,
                    "--silence-ms", options.silence_ms])
        self.port = self.wait_for(lambda: re.search(r"http://.*:(\d+)\n", self.output(0)), "its lighthouse")[1]
        self.commits = []
        for _ in range(WORKERS):
            self.start_another()

    def start_another(self):
        options, number = self.options, len(self.commits)
        self.commits.append(self.folder / f"{number}.commits")
        self.start([sys.executable, self.script, "--lighthouse-address", f"http://127.0.0.1:{self.port}", "--name", f"replica{number}",
                    "--commits", self.commits[-1], "--hidden", hidden_for(options.parameters), "--batch", options.batch // WORKERS,
                    "--heartbeat-ms", options.heartbeat_ms])

    def kill(self, replica):
        os.kill(replica.pid, signal.SIGKILL)

    def steps(self, replica):
        """When each ended, how many took part, and whether this one did."""
        path = self.commits[replica]
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(float(end), int(count), part == "1") for end, count, part in map(str.split, lines)]

    def step_times(self):
        """Of all three together: they do not begin at once."""
        return [end for end, count, _ in self.steps(0) if count == WORKERS]

    def first_step_of(self, workers, since):
        replica = 0 if workers < WORKERS else len(self.commits) - 1
        def found():
            return min((end for end, count, takes_part in self.steps(replica)
                        if end > since and count == workers and takes_part), default=None)
        return self.wait_for(found, f"a step of {workers} replicas")


def compare_plain(options, scratch):
    """Samples a second where min_workers is 1, by that where it is 0."""
    write_dataset(scratch / "data", train=100 * options.batch)
    rates = {0: [], 1: []}
    for number in range(2 * options.rounds):
        least = number % 2
        job = write_job(scratch / "plain.toml", model={"name": "mlp", "hidden": hidden_for(options.parameters)},
                        data={"path": str(scratch / "data")},
                        train={"epochs": 1_000_000, "steps": options.plain_steps, "global_batch": options.batch, "optimizer": "adam",
                               "learning_rate": 1e-4, "evaluate": False},
                        checkpoint={"dir": ""}, elastic={"min_workers": least})
        report = scratch / "report.json"
        subprocess.run([BIMETAL, "train", job, "--report", report, *["--worker", "cpu:threads=1"] * WORKERS], check=True,
                       capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        rates[least].append(json.loads(report.read_text())["samples_per_s"])
    fixed, elastic = (statistics.median(rates[least]) for least in (0, 1))
    print(f"without events: {elastic:.0f} samples/s elastic, {fixed:.0f} not; ratio {elastic / fixed:.3f}", flush=True)


def install(folder):
    """torchft without its torch: this Python's is taken."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
    subprocess.run([*pip, "--no-deps", *TORCHFT], check=True)
    subprocess.run([*pip, *ITS_NEEDS], check=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=float, default=10e6, help="of the model (default 10e6)")
    parser.add_argument("--batch", type=int, default=96, help="samples of a step of all three (default 96)")
    parser.add_argument("--plain-steps", type=int, default=60, help="of each job without events (default 60; 0: no such jobs)")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between a loss and a newcomer (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--torchft", type=pathlib.Path, metavar="FOLDER", help="where pip install --target has put torchft")
    parser.add_argument("--join-ms", type=int, default=10_000,
                        help="torchft's lighthouse: it waits so long for who is alive and late (default 10000)")
    parser.add_argument("--tick-ms", type=int, default=20, help="torchft's lighthouse: it looks so often (default 20)")
    parser.add_argument("--silence-ms", type=int, default=500, help="torchft's lighthouse: who is silent so long is lost (default 500)")
    parser.add_argument("--heartbeat-ms", type=int, default=100, help="torchft's replicas: a sign of life so often (default 100)")
    return parser.parse_args()


def row(name, figures):
    step, loss, newcomer = figures
    return f"{name:20} {step:10.3f} {loss:10.3f} {newcomer:10.3f}"


def compare(options, scratch):
    found = {side: [] for side in (Bimetal, Torchft)}
    print(f"{'seconds':20} {'step':>10} {'loss':>10} {'newcomer':>10}")
    for number in range(1, options.rounds + 1):
        for side, rounds in found.items():
            with side(options, scratch / f"{side.name}-{number}") as job:
                rounds.append(job.round())
            print(row(f"{number} {side.name}", rounds[-1]), flush=True)
    ours, theirs = ([statistics.median(column) for column in zip(*rounds)] for rounds in found.values())
    print(row("median Bimetal", ours))
    print(row("median torchft", theirs))
    print(row("Bimetal / torchft", [a / b for a, b in zip(ours, theirs)]))


def main():
    options = arguments()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        if options.torchft is None:
            options.torchft = scratch / "torchft"
            install(options.torchft)
        version, = (each.version for each in importlib.metadata.distributions(name="torchft", path=[str(options.torchft)]))
        print(describe(BIMETAL) | {"torchft": version} | {key: value for key, value in vars(options).items() if key != "torchft"})
        if options.plain_steps:
            compare_plain(options, scratch)
        compare(options, scratch)


if __name__ == "__main__":
    main()
