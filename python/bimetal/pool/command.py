"""Shared by the commands that start runs: options, where they run, how they end, and what people see meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from bimetal._errors import EXIT_STATUSES, INTERRUPTED, Error
from bimetal.library import files
from bimetal.pool.local import LocalHost
from bimetal.pool.pool import Device, Host, Outcome, Pool, Run
from bimetal.runs import folders
from bimetal.runs.job import Job

_NO_ADDRESS = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """--set, --worker, --ray, --report."""
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value",
                        help="change a key of the job; may be repeated")
    parser.add_argument("--worker", action="append", default=[], metavar="SPEC",
                        help="a device to run on, one run at a time: cpu:threads=1, cuda:0, mps; may be repeated "
                             "(default: every accelerator, else one thread for each core). With --ray what to ask of "
                             'the cluster: cuda, mps, num_cpus=2, {"num_cpus": 1, "labels": {"os": "Linux"}} (default: every '
                             "accelerator that the nodes offer, else each of their CPUs)")
    parser.add_argument("--ray", nargs="?", const=_NO_ADDRESS, metavar="ADDRESS",
                        help="run on a Ray cluster (docs/ray.md): the one at ADDRESS, that of RAY_ADDRESS, or this "
                             "machine's")
    parser.add_argument("--report", type=pathlib.Path, metavar="FILE.json", help="write all figures here")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON; all else goes to standard error")


def confine(arguments: argparse.Namespace, module: str) -> None:
    """With --ray starts the command anew (as `python -m MODULE`) so that nothing of it listens but on the address
    towards the cluster: Ray can't be told so later. Returns where that is done, or without --ray."""
    if arguments.ray is None:
        return
    from bimetal.ray import run_node

    variables = run_node.environment_if_unset(arguments.ray or None)
    if variables is not None:
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], variables)


@contextlib.contextmanager
def host_of(arguments: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[Host]:
    """The devices that the options name. ImportError says what to install where --ray finds no Ray."""
    if arguments.ray is None:
        host: Any = LocalHost(arguments.worker)
    else:
        from bimetal.pool.on_ray import RayHost

        host = RayHost(arguments.worker, arguments.ray or None, tell)
    with host:
        yield host


def pool_on(host: Host, job: Job, changed: Callable[[Pool], None], tell: Callable[[str], None],
            always_measure: bool) -> Pool:
    """A pool that knows how fast the devices are. Devices of one kind need no measuring, unless it is to be found out
    whether they can do the job (``always_measure``)."""
    kinds = {device.kind for device in host.devices}
    speeds: dict[str, float] = {}
    if always_measure or len(kinds) > 1:
        tell("measuring devices …")
        with work_folder(None) as folder:
            speeds = measure(host, job, folder)
        host.devices = [device for device in host.devices if device.kind in speeds]
        tell(", ".join(f"{device.name}: {speeds[device.kind]:.0f} samples/s" for device in
                       {device.kind: device for device in host.devices}.values()))
    return Pool(host, changed, speeds)


def progress(summary: str, pool: Pool) -> str:
    """One line: how far all runs are, and those at work."""
    at_work = ", ".join(f"{running.run.name.removeprefix('trial ')}: {100 * running.done:.0f} %"
                        for running in pool.running.values())
    return f"{summary}  running {at_work}" if at_work else summary


def all_failed(kind: str, entries: Sequence[Any]) -> int:
    """Says that none of the trials or members has come to anything; the exit status."""
    first = next(entry for entry in entries if entry.failure)
    complain(f"bimetal: error: every {kind} has failed; {first.name}: {first.failure}")
    return EXIT_STATUSES.get(first.code or "", EXIT_STATUSES["internal"])


@contextlib.contextmanager
def work_folder(kept: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """The folder named, made where it is missing; None: a temporary one, which is gone afterwards."""
    if kept is not None:
        try:
            kept.mkdir(parents=True, exist_ok=True)
        except OSError as bad:
            raise Error(f"cannot make the folder {kept}: {bad}", "system") from bad
        yield kept.absolute()
        return
    with folders.scratch("bimetal-runs") as folder:
        yield folder


def require_writable(report: pathlib.Path | None) -> None:
    """bimetal.Error before hours of work if a report could not be written afterwards."""
    if report is not None and (report.is_dir() or not os.access(report.absolute().parent, os.W_OK)):
        raise Error(f"cannot write {report}: {'it is a folder' if report.is_dir() else 'its folder is not there'}",
                    "system")


def require_new(folder: pathlib.Path | None) -> None:
    """bimetal.Error if something lies there already, which would get mixed up with the new files."""
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Error(f"{folder} is not empty: name another folder", "invalid_argument")


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Written aside, brought to the disk and renamed: complete, or not there. bimetal.Error with the path if that cannot
    be."""
    files.write_file_atomically(path, _text_of(content))


def report(arguments: argparse.Namespace, content: dict[str, Any]) -> None:
    """As --report and --json ask, with the error of ``write_json``."""
    if arguments.json:
        print_json(content)
    if arguments.report:
        write_json(arguments.report, content)


def print_json(content: dict[str, Any]) -> None:
    print(_text_of(content), end="", flush=True)


def _text_of(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def run_command(command: Callable[[], int]) -> int:
    """Runs it, prints what ends it, and gives the exit status (docs/errors.md)."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return command()
    except KeyboardInterrupt:
        return interrupted()
    except ImportError as missing:
        if missing.name not in ("optuna", "ray"):
            raise
        complain(f"bimetal: error: {missing}")
        return EXIT_STATUSES["unsupported"]
    except Error as failed:
        complain(f"bimetal: error: {failed}")
        return EXIT_STATUSES[failed.code]


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def interrupted() -> int:
    """Says so; the exit status."""
    complain("bimetal: interrupted")
    return INTERRUPTED


def complain(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


def measure(host: Host, job: Job, folder: pathlib.Path) -> dict[str, float]:
    """Samples per second of each kind of device, measured at the same time, as they will work. Kinds that are lost
    meanwhile, with their node, are left out.

    Raises:
        bimetal.Error: of the first device that can't do the job, by its name.
    """
    by_kind = {device.kind: device for device in host.devices}
    probes = _Probes(job, folder, list(by_kind.values()))
    Pool(_Only(host, probes.devices)).work_through(probes)
    return probes.speeds


class _Only:
    """A host with some of its devices."""

    def __init__(self, host: Host, devices: Sequence[Device]):
        self.devices = devices
        self.start, self.hear, self.stop = host.start, host.hear, host.stop


class _Probes:
    """A Source of one plan for each device."""

    def __init__(self, job: Job, folder: pathlib.Path, devices: Sequence[Device]):
        self.devices = devices
        self.speeds: dict[str, float] = {}
        self._job = job
        self._folder = folder
        self._begun = 0

    def waiting(self) -> list[float]:
        # For runs of equal length on devices held for equally fast: each gets one at once.
        return [1.0] * (len(self.devices) - self._begun)

    def begin(self, index: int) -> Run:
        self._begun += 1
        folder = self._folder / f"probe-{self._begun}"
        folder.mkdir(parents=True)
        name = self._job.write_to(folder)
        return Run(folder.name, folder, ["plan", name, *self._job.base_arguments(), "--json"], brings=(name,))

    def ended(self, outcome: Outcome) -> None:
        if outcome.lost:
            return
        if outcome.failure:
            raise Error(f"{outcome.device.name} cannot do this job: {outcome.failure}", outcome.code or "internal")
        plan = json.loads("\n".join(outcome.output))
        worker = plan["workers"][0]
        if worker["seconds_per_sample"] is None:
            raise Error(f"{outcome.device.name} cannot do this job: the model does not fit into its memory",
                        "out_of_memory")
        batch = plan["global_batch"]
        self.speeds[outcome.device.kind] = batch / (worker["seconds_per_step"] + batch * worker["seconds_per_sample"])


_PLAIN_SECONDS = 10.0  # between two lines of progress where none can be rewritten


class Screen:
    """Standard output, or standard error where that is for JSON. On a terminal that somebody looks at the live line is rewritten;
    elsewhere a plain one appears now and then."""

    def __init__(self, for_json: bool = False) -> None:
        self._output = sys.stderr if for_json else sys.stdout
        self._live = _may_rewrite(self._output)
        self._shown = False
        self._next = time.monotonic() + _PLAIN_SECONDS

    def show(self, text: str) -> None:
        """The state just now."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[2K{text[:width]}")
            self._shown = True
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_SECONDS
            self._write(text + "\n")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._write(text + "\n")

    def clear(self) -> None:
        """Takes the live line away."""
        if self._shown:
            self._write("\r\x1b[2K")
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._output.write(text)
            self._output.flush()
        except BrokenPipeError:  # nobody reads any more: no reason to end what runs
            self._output = open(os.devnull, "w")


def _may_rewrite(output: TextIO) -> bool:
    """Whether it is a terminal that somebody looks at: base/log.h has the same rule."""
    unseen = any(os.environ.get(name) for name in ("NO_COLOR", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"))
    return output.isatty() and not unseen and os.environ.get("TERM") not in (None, "", "dumb")


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines of a table: the first ``left`` columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) if column < left else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def clock(seconds: float) -> str:
    """``0:42``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
