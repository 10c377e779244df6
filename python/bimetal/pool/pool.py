"""Keeps devices at work: starts what waits where it will be done first, and hears how it gets on.

Which of the waiting runs to start on which of the idle devices is list scheduling by earliest finish time: the longest
run first, each on the device that would finish it first, busy ones included (LPT on uniform machines: T. Gonzalez, O. H.
Ibarra, S. Sahni, "Bounds for LPT schedules on uniform processors", SIAM J. Comput. 6, 1977). So long runs go to fast
devices, and none is begun on a slow device that a fast one, free soon, would finish earlier.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bimetal._errors import Error


@dataclass
class Device:
    """A place where one run at a time can run.

    Attributes:
        name: for people; devices of a search differ in it only where they differ.
        worker: as ``bimetal train --worker`` takes it.
        kind: devices of the same kind are taken to be equally fast.
        where: of the host that it belongs to.
    """

    name: str
    worker: str
    kind: str
    where: Any = None


@dataclass
class Run:
    """A run: ``bimetal ARGUMENTS --worker DEVICE`` in a folder of its own.

    Attributes:
        name: unique among those that run at the same time.
        folder: on this machine. The run begins with what ``brings`` names in it and ends with what ``returns`` names,
            wherever it runs; relative paths among the arguments begin there.
        arguments: of the program.
        samples: that it will train on, epochs counted as NOMINAL_EPOCH; tells long runs from short ones.
        brings, returns: names in ``folder`` of files and folders; what is not there is left out.
    """

    name: str
    folder: pathlib.Path
    arguments: list[str]
    samples: float = 0.0
    brings: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        run, device: which, and where.
        seconds: from its start to its end.
        report: the JSON that it wrote as ``report.json``, if it did.
        output: its lines.
        failure: why it failed, for people; None: it did not.
        code: of that failure, as in bimetal.Error.
        lost: the device is gone with it: the run itself is not to blame, and may be tried elsewhere.
    """

    run: Run
    device: Device
    seconds: float
    report: dict[str, Any] | None = None
    output: list[str] = field(default_factory=list)
    failure: str | None = None
    code: str | None = None
    lost: bool = False


@dataclass
class Forecast:
    """The forecast for a device.

    Attributes:
        samples_per_s: while it trains.
        free_in: seconds until it is idle; 0: it is.
        overhead: seconds that any run on it takes beside training: start, data, evaluation.
    """

    samples_per_s: float
    free_in: float = 0.0
    overhead: float = 0.0

    def finish(self, samples: float) -> float:
        """Seconds until a run of so many samples would be done, were it the next here."""
        return self.free_in + self.overhead + samples / self.samples_per_s


def choose(waiting: Sequence[float], devices: Sequence[Forecast]) -> list[tuple[int, int]]:
    """Pairs (index of a run, index of an idle device) to start now; other runs are better off waiting.

    Args:
        waiting: samples of each run that could start. Among equally long ones the first comes first.
        devices: all that there are, busy ones too.
    """
    plan = [Forecast(device.samples_per_s, device.free_in, device.overhead) for device in devices]
    idle = {index for index, device in enumerate(devices) if device.free_in <= 0}
    chosen = []
    for run in sorted(range(len(waiting)), key=lambda index: -waiting[index]):
        if not idle:
            break
        best = min(range(len(plan)), key=lambda index: plan[index].finish(waiting[run]))
        plan[best].free_in = plan[best].finish(waiting[run])
        if best in idle:
            idle.remove(best)
            chosen.append((run, best))
    return chosen


_HEAR_SECONDS = 0.5
_STOP_SECONDS = 10.0  # for runs to end by themselves when they are asked to
_LINES = 1000  # of a run's output that are kept


class Host(Protocol):
    """A host of devices. A context manager: nothing that it has started runs on when it is left."""

    devices: Sequence[Device]

    def start(self, run: Run, device: Device) -> None: ...

    def hear(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names of runs, and their events: events of JobProcess, of which ``failed`` may say ``lost``."""

    def stop(self, run: Run) -> None:
        """Asks a run to end soon; its end is heard of."""


class Source(Protocol):
    """The source of runs. Its methods are called on the thread of ``Pool.work_through``."""

    def waiting(self) -> Sequence[float]:
        """The samples of each run that could start now."""

    def begin(self, index: int) -> Run:
        """Makes that one of ``waiting()`` a run, which is started at once."""

    def ended(self, outcome: Outcome) -> None: ...


@dataclass
class Running:
    """A run at work.

    Attributes:
        left: samples still to train on; nominal until it has told.
        done: 0…1, of what it has to do in this run.
    """

    run: Run
    device: Device
    left: float
    began: float
    total: float | None = None
    output: list[str] = field(default_factory=list)

    @property
    def done(self) -> float:
        return 1 - self.left / self.total if self.total else 0.0


class Pool:
    """Runs of one Source after another on the devices of a host.

    Args:
        host: where.
        changed: is called with this after every half second, and whatever has happened.
        speeds: samples per second by kind of device, where they have been measured before.
    """

    def __init__(self, host: Host, changed: Callable[[Pool], None] = lambda _: None, speeds: dict[str, float] | None = None):
        self.devices = list(host.devices)
        self.running: dict[str, Running] = {}
        self.speeds = dict(speeds or {})
        self._host = host
        self._changed = changed
        self._scale = 1.0  # samples that runs really have ÷ nominal ones
        self._overheads: list[float] = []

    def work_through(self, source: Source) -> None:
        """Returns when nothing waits and nothing runs. Any exception meanwhile (KeyboardInterrupt, too) stops the runs
        first."""
        try:
            while True:
                self._start(source)
                if not self.running:
                    if source.waiting() and not self.devices:
                        raise Error("no device is left to run on", "peer_lost")
                    return
                for name, said in self._host.hear(_HEAR_SECONDS):
                    self._take(name, said, source)
                self._changed(self)
        except BaseException:
            self._stop_all()
            raise

    def _start(self, source: Source) -> None:
        waiting = source.waiting()
        if not waiting:
            return
        chosen = choose([samples * self._scale for samples in waiting],
                                [self._forecast(device) for device in self.devices])
        # From the end: taking one must not change the numbers of the others.
        for index, device in sorted(chosen, reverse=True):
            run = source.begin(index)
            self._host.start(run, self.devices[device])
            self.running[run.name] = Running(run, self.devices[device], run.samples * self._scale, time.monotonic())

    def _forecast(self, device: Device) -> Forecast:
        speed = self.speed(device)
        overhead = sum(self._overheads) / len(self._overheads) if self._overheads else 0.0
        busy = next((running for running in self.running.values() if running.device is device), None)
        # A run that has trained all it should may still be evaluating: it is not idle yet.
        free_in = max(busy.left / speed, 1e-3) if busy else 0.0
        return Forecast(speed, free_in, overhead)

    def speed(self, device: Device) -> float:
        """Samples per second; for a kind that was not measured yet the others' average."""
        known = list(self.speeds.values())
        return self.speeds.get(device.kind) or (sum(known) / len(known) if known else 1.0)

    def _take(self, name: str, said: dict[str, Any], source: Source) -> None:
        running = self.running.get(name)
        if running is None:
            return  # of one that was given up
        if said["kind"] == "progress":
            self._progress(running, said["metrics"])
        elif said["kind"] == "line":
            running.output = [*running.output[-_LINES + 1:], said["text"]]
        elif said["kind"] in ("ended", "failed"):
            del self.running[name]
            self._ended(running, said, source)

    def _progress(self, running: Running, metrics: dict[str, Any]) -> None:
        batch = sum(metrics["shares"])
        running.left = float((metrics["steps"] - metrics["step"]) * batch)
        if running.total is None:
            running.total = running.left + batch
            if running.run.samples > 0:
                self._scale = running.total / running.run.samples
        if metrics["samples_per_s"] > 0:
            self.speeds[running.device.kind] = metrics["samples_per_s"]

    def _ended(self, running: Running, said: dict[str, Any], source: Source) -> None:
        outcome = Outcome(running.run, running.device, time.monotonic() - running.began, output=running.output)
        if said["kind"] == "failed":
            outcome.failure, outcome.code = said["text"], said["code"]
            outcome.lost = said.get("lost", False)
            if outcome.lost:
                self.devices.remove(running.device)
        elif said["interrupted"]:
            outcome.failure, outcome.code = "was asked to end (SIGTERM) and has done so", "aborted"
        else:
            outcome.report = said["report"]
            self._learn(running, outcome)
        source.ended(outcome)

    def _learn(self, running: Running, outcome: Outcome) -> None:
        report = outcome.report or {}
        if report.get("samples_per_s"):
            self.speeds[running.device.kind] = report["samples_per_s"]
            self._overheads = [*self._overheads[-9:], max(0.0, outcome.seconds - report["elapsed_s"])]

    def _stop_all(self) -> None:
        for running in self.running.values():
            self._host.stop(running.run)
        until = time.monotonic() + _STOP_SECONDS
        while self.running and time.monotonic() < until:
            for name, said in self._host.hear(0.2):
                if said["kind"] in ("ended", "failed"):
                    self.running.pop(name, None)
        self.running.clear()
