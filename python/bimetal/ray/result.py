"""What the driver hears while a job runs, and what it has in the end."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened in the job.

    Attributes:
        kind: ``"line"`` (a line that a rank has printed), ``"progress"`` and ``"evaluated"`` (of a job
            file), ``"report"`` (a train loop's ``bimetal.ray.report``), ``"checkpoint"``, or ``"notice"``
            (of the Trainer itself: waiting, restarts, workers that the job goes on without).
        rank: whose; None for notices, and for what the first parameter server says.
        text: for people; empty where there is nothing to print.
        metrics: numbers by name. Of ``progress``: epoch, epochs, step, steps, loss, samples_per_s, efficiency,
            shares; of ``evaluated``: epoch, accuracy (0 to 1), loss; of ``report``: what was reported.
        checkpoint: of ``checkpoint``: its folder on the driver's machine.
    """

    kind: str
    rank: int | None = None
    text: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    checkpoint: pathlib.Path | None = None


@dataclass(frozen=True)
class Restart:
    """One failure that the job has survived.

    Attributes:
        cause: what had happened, for people.
        checkpoint: what the job went on from; None: it began anew.
        seconds: from the driver's noticing the failure until the ranks were started again.
        workers: how many there were afterwards.
    """

    cause: str
    checkpoint: pathlib.Path | None
    seconds: float
    workers: int


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        metrics: of a job file: the figures of docs/report.md but ``workers`` and ``history``; of a train loop: what
            rank 0 reported last.
        workers: one entry per rank of the last try, in order: ``rank``, ``host``, ``address``, ``node``, ``worker``
            (device and threads); of a job file also those of docs/report.md, of a train loop ``metrics``, what it
            reported last. With parameter servers a worker that was lost is among them, without figures if it never
            joined.
        checkpoint: the newest one, on the driver's machine (or where its ``storage`` is); None: there is none.
        restarts: failures survived, oldest first.
        history: of a job file: the points of docs/report.md; of a train loop: all that rank 0 reported.
    """

    metrics: dict[str, Any]
    workers: list[dict[str, Any]]
    checkpoint: pathlib.Path | None
    restarts: list[Restart]
    history: list[dict[str, Any]]


def print_event(event: Event) -> None:
    """What a Trainer does with events unless told otherwise: rank 0's and its own lines go to standard output."""
    if event.text and event.rank in (None, 0):
        print(event.text, flush=True)
