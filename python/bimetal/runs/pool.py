"""Keeps devices at work: starts what waits where it will be done first, and hears how it gets on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bimetal._errors import Error
from bimetal.runs import packing
from bimetal.runs.run import Device, Outcome, Run

_HEAR_SECONDS = 0.5
_STOP_SECONDS = 10.0  # for runs to end by themselves when they are asked to
_LINES = 1000  # of a run's output that are kept


class Host(Protocol):
    """Where devices are. A context manager: nothing that it has started runs on when it is left."""

    devices: Sequence[Device]

    def start(self, run: Run, device: Device) -> None: ...

    def hear(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names of runs, and what happened to them: events of JobProcess, of which ``failed`` may say ``lost``."""

    def stop(self, run: Run) -> None:
        """Asks a run to end soon; its end is heard of."""


class Source(Protocol):
    """What there is to run. Its methods are called on the thread of ``Pool.work_through``."""

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
        changed: is called after every half second, and whatever has happened.
        speeds: samples per second by kind of device, where they have been measured before.
    """

    def __init__(self, host: Host, changed: Callable[[], None] = lambda: None, speeds: dict[str, float] | None = None):
        self.devices = list(host.devices)
        self.running: dict[str, Running] = {}
        self.speeds = dict(speeds or {})
        self._host = host
        self._changed = changed
        self._scale = 1.0  # samples that runs really have ÷ nominal ones
        self._overheads: list[float] = []

    def work_through(self, source: Source) -> None:
        """Returns when nothing waits and nothing runs. Whatever is raised meanwhile (KeyboardInterrupt, too) stops the
        runs first."""
        try:
            while True:
                self._start(source)
                if not self.running:
                    if source.waiting() and not self.devices:
                        raise Error("no device is left to run on", "peer_lost")
                    return
                for name, said in self._host.hear(_HEAR_SECONDS):
                    self._take(name, said, source)
                self._changed()
        except BaseException:
            self._stop_all()
            raise

    def _start(self, source: Source) -> None:
        waiting = source.waiting()
        if not waiting:
            return
        chosen = packing.choose([samples * self._scale for samples in waiting],
                                [self._forecast(device) for device in self.devices])
        # From the end: what is taken must not change the numbers of the others.
        for index, device in sorted(chosen, reverse=True):
            run = source.begin(index)
            self._host.start(run, self.devices[device])
            self.running[run.name] = Running(run, self.devices[device], run.samples * self._scale, time.monotonic())

    def _forecast(self, device: Device) -> packing.Forecast:
        speed = self.speed(device)
        overhead = sum(self._overheads) / len(self._overheads) if self._overheads else 0.0
        busy = next((running for running in self.running.values() if running.device is device), None)
        # A run that has trained all it should may still be evaluating: it is not idle yet.
        free_in = max(busy.left / speed, 1e-3) if busy else 0.0
        return packing.Forecast(speed, free_in, overhead)

    def speed(self, device: Device) -> float:
        """Samples per second; of a kind that was not measured yet what the others do on average."""
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
