"""What the commands that start runs have in common: options, where they run, how they end."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bimetal import _C
from bimetal._errors import EXIT_STATUSES, INTERRUPTED, Error
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


def pool_on(host: Host, job: Job, changed: Callable[[], None], tell: Callable[[str], None],
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
    """bimetal.Error if something lies there already, which would get mixed up with what comes."""
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Error(f"{folder} is not empty: name another folder", "invalid_argument")


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Written aside, brought to the disk and renamed: complete, or not there. bimetal.Error with the path if that cannot
    be."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    _C.write_file_atomically(str(path), text)


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
        # Of equal length on devices held for equally fast: each gets one at once.
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
