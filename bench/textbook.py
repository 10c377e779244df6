#!/usr/bin/env python3
"""The textbook's ResNet-18 under DDP on two unequal workers (CPU quotas set by the operating system), in turns in one run:

  solo       the program as it was, on each worker by itself, one after the other
  as it was  both, on Gloo, in equal batches
  one line   both, with the one line of examples/textbook changed, in equal batches
  balanced   both, with the page's lines for unequal machines

Images/s of the epochs behind the first, in which shares settle and allocations are made, and each side as a part of the sum of
the solo rates: median, least and most of the rounds. Needs the package: PYTHONPATH=build/python, or installed.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

import machine
import ranks
from finish import outputs_of

sys.path.append(str(ranks.ROOT / "tests" / "python"))  # behind this folder, which has a ranks.py, too

from textbook_page import TEXTBOOK, for_unequal_machines, original  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", default="1,0.3333", help="parts of a core for the two workers")
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--width", type=int, default=16, help="of the network")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def images_per_second(program, speeds, options):
    """The rates of the ranks of one job, each held to its speed."""
    command = [sys.executable, program, "--samples", options.samples, "--batch-size", options.batch_size, "--width",
               options.width, "--epochs", options.epochs, "--checkpoint", program.parent / "resnet18.pt"]
    commands = [[str(part) for part in command]] * len(speeds)
    with ranks.started(commands, speeds, options.period_ms, placed=True) as processes:
        timer = threading.Timer(ranks.TIMEOUT_S, lambda: [process.kill() for process in processes])
        timer.start()
        ended = [time.monotonic() for line in processes[0].stdout if line.startswith("epoch ")]
        timer.cancel()
        outputs_of(processes, program.name, ranks.TIMEOUT_S)
    return options.samples * (options.epochs - 1) / (ended[-1] - ended[0])


def main():
    options = arguments()
    if options.epochs < 2:
        sys.exit("--epochs: the first one is not counted, so that there have to be two")
    speeds = [float(speed) for speed in options.speeds.split(",")]
    # The programs' own folder, from which copies of them import.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TEXTBOOK), os.environ.get("PYTHONPATH")]))
    print(machine.describe(ranks.BIMETAL))
    print(f"ResNet-18 of width {options.width}, {options.batch_size} images a rank, speeds {options.speeds}")
    text = (TEXTBOOK / "resnet_ddp.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        # The import is for a package that is not installed, whose back end torch does not know by itself.
        ours = "import bimetal\n" + text
        sides = {"as it was": original(text), "one line": ours, "balanced": for_unequal_machines(ours)}
        programs = {name: pathlib.Path(folder, f"{name.replace(' ', '_')}.py") for name in sides}
        for name, program in programs.items():
            program.write_text(sides[name])
        parts = {name: [] for name in programs}
        for _ in range(options.rounds):
            solo = [images_per_second(programs["as it was"], [speed], options) for speed in speeds]
            print(f"solo {' and '.join(f'{rate:.0f}' for rate in solo)} images/s", flush=True)
            for name, program in programs.items():
                rate = images_per_second(program, speeds, options)
                parts[name].append(rate / sum(solo))
                print(f"  {name:10} {rate:6.0f} images/s, {parts[name][-1]:.2f} of the sum", flush=True)
    for name, found in parts.items():
        print(f"{name:10} {statistics.median(found):.2f} of the sum of solo rates ({min(found):.2f} … {max(found):.2f})")


if __name__ == "__main__":
    main()
