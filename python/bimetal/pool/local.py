"""This machine's devices: each run is a child process, which does not outlive this one."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bimetal._core import core
from bimetal._devices import accelerators, usable_cores
from bimetal.command import program
from bimetal.pool.pool import Device, Run
from bimetal.runs.job_process import SOLO, JobProcess


class LocalHost:
    """Runs as children of this process.

    Args:
        workers: what to run on, one run at a time each; empty: every accelerator, or each core where there is none.

    Raises:
        bimetal.Error: ``invalid_argument`` for a worker that can't be read, ``unsupported`` for one that is not there.
    """

    def __init__(self, workers: Sequence[str]):
        workers = [_resolved(worker) for worker in workers] or default_workers()
        self.devices = [Device(worker, worker, kind=worker) for worker in _with_threads(workers)]
        self._program = program.for_jobs()
        self._events: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._processes: dict[str, JobProcess] = {}

    def __enter__(self) -> LocalHost:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start(self, run: Run, device: Device) -> None:
        command = [self._program, *run.arguments, "--worker", device.worker]
        self._processes[run.name] = JobProcess(command, SOLO, run.folder / "report.json", _Said(self._events, run.name),
                                               run.folder)

    def hear(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            try:
                name, said = self._events.get(timeout=rest)
            except queue.Empty:
                return
            if said["kind"] in ("ended", "failed"):
                self._processes.pop(name).wait()
                until = 0.0  # a device is idle
            yield name, said

    def stop(self, run: Run) -> None:
        if process := self._processes.get(run.name):
            process.stop()


class _Said:
    """A run's mailbox: all of them go into one queue, with its name."""

    def __init__(self, events: queue.SimpleQueue[tuple[str, dict[str, Any]]], name: str):
        self._events = events
        self._name = name

    def put(self, kind: str, **details: Any) -> None:
        self._events.put((self._name, {"kind": kind, **details}))


def default_workers() -> list[str]:
    """Every accelerator that torch sees; where there is none, one thread for each usable core."""
    return accelerators() or ["cpu:threads=1"] * usable_cores()


def _resolved(worker: str) -> str:
    """The worker with ``auto`` replaced by its meaning here. bimetal.Error if there is no such device."""
    device = core.device(worker, 0)
    kind, _, options = worker.partition(":")
    if kind != "auto":
        return worker
    return device if not options else f"{device}{',' if ':' in device else ':'}{options}"


def _with_threads(workers: Sequence[str]) -> list[str]:
    """CPU workers without ``threads=`` get an equal part of the cores each: none knows of the others."""
    def shares(worker: str) -> bool:
        return worker.partition(":")[0] == "cpu" and "threads=" not in worker

    sharing = sum(map(shares, workers))
    if sharing < 2:
        return list(workers)
    threads = max(1, usable_cores() // sharing)
    return [f"{worker}{',' if ':' in worker else ':'}threads={threads}" if shares(worker) else worker
            for worker in workers]
