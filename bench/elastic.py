"""The cost of the loss of a worker, and of the coming of another: Bimetal's elastic jobs beside others, in turn.

Three workers of one thread each, on this machine, train the same MLP with Adam. In each round and on each side

    loss      one of the three is killed (SIGKILL) at a random moment of a step. Counted is the time from there to the end
              of the first step that the others have made by themselves and that nobody had made before, less the median
              step before
    newcomer  once the others are under way again, a new worker's process is started. Counted is the time from there to
              the end of the first step that its gradients are part of

    plain     before the rounds: the rate of a job without events that may change its workers ÷ that of one that may not,
              from jobs of the same three workers in turn (--plain-steps, 0: none)

The sides (--sides): Bimetal; torchft, by its Manager; torchrun, one agent for each worker, which saves a checkpoint every
--every steps and starts all workers again from it; hvd.elastic, Horovod's interface in bimetal.horovod, which commits every
--every steps.

Bimetal's steps are read from its monitor, the others' from a file that each worker writes. torchft's lighthouse has the
short time-outs that --join-ms, --tick-ms and --silence-ms say; its own are 60 s, 100 ms and 5 s. torchrun's agents look
for each other every second, and wait one second for more of them; their own are 5 s and 30 s.

    .venv/bin/python bench/elastic.py                            about a minute a round
    .venv/bin/python bench/elastic.py --parameters 100e6         wants 8 GB of memory

If there is no folder --torchft, pip installs torchft into one that is deleted in the end.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile

from elastic_sides import SIDES, WORKERS
from job_file import hidden_for, write_job
from machine import describe
from ranks import BIMETAL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import write_dataset  # noqa: E402

TORCHFT = ["torchft==0.2.0"]
ITS_NEEDS = ["opentelemetry-api>=1.39.0", "opentelemetry-sdk>=1.39.0", "opentelemetry-exporter-otlp-proto-http>=1.39.0"]


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
    parser.add_argument("--sides", nargs="+", choices=[*SIDES], default=[*SIDES], help="whose jobs (default: all)")
    parser.add_argument("--every", type=int, default=10, help="steps between torchrun's checkpoints, and hvd's commits (default 10)")
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
    return f"{name:26} {step:10.3f} {loss:10.3f} {newcomer:10.3f}"


def compare(options, scratch):
    found = {SIDES[name]: [] for name in options.sides}
    print(f"{'seconds':26} {'step':>10} {'loss':>10} {'newcomer':>10}")
    for number in range(1, options.rounds + 1):
        for side, rounds in found.items():
            with side(options, scratch / f"{side.name}-{number}") as job:
                rounds.append(job.round())
            print(row(f"{number} {side.name}", rounds[-1]), flush=True)
    medians = {side.name: [statistics.median(column) for column in zip(*rounds)] for side, rounds in found.items()}
    for name, figures in medians.items():
        print(row(f"median {name}", figures))
    ours = medians.pop(SIDES["bimetal"].name, None)
    for name, theirs in medians.items() if ours else ():
        print(row(f"Bimetal / {name}", [a / b for a, b in zip(ours, theirs)]))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the jobs end with it
    options = arguments()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        facts = describe(BIMETAL) | {"load": os.getloadavg()[0]}
        if "torchft" in options.sides:
            if options.torchft is None:
                options.torchft = scratch / "torchft"
                install(options.torchft)
            version, = (each.version for each in importlib.metadata.distributions(name="torchft", path=[str(options.torchft)]))
            facts["torchft"] = version
        print(facts | {key: value for key, value in vars(options).items() if key != "torchft"})
        if options.plain_steps:
            compare_plain(options, scratch)
        compare(options, scratch)


if __name__ == "__main__":
    main()
