"""The events that the driver hears while a job runs, and its outcome: a result, or a failure, and whether another try
can help."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bimetal._errors import Error, error


@dataclass(frozen=True)
class Event:
    """Something that happened in the job.

    Attributes:
        kind: ``"line"`` (a line that a rank has printed), ``"progress"`` and ``"evaluated"`` (of a job
            file), ``"report"`` (a train loop's ``bimetal.ray.report``), ``"checkpoint"``, or ``"notice"``
            (of the Trainer itself: waiting, restarts, workers that the job goes on without).
        rank: whose; None for notices, and for events of the first parameter server.
        text: for people; empty where there is nothing to print.
        metrics: numbers by name. For ``progress``: epoch, epochs, step, steps, loss, samples_per_s, efficiency, shares;
            for ``evaluated``: epoch, accuracy (0 to 1), loss; for ``report``: the reported metrics.
        checkpoint: for ``checkpoint``: its folder on the driver's machine.
    """

    kind: str
    rank: int | None = None
    text: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    checkpoint: pathlib.Path | None = None


@dataclass(frozen=True)
class Change:
    """A worker that the others have gone on without, or that has come to them.

    Attributes:
        what: ``"lost"``, ``"left"`` in good order, or ``"came"`` into the place of one that was lost or has left.
        rank: whose place among the workers that were asked for.
        text: how, for people.
        seconds: of ``came``: since the loss, until it was started.
    """

    what: str
    rank: int
    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Restart:
    """One failure after which all workers were started anew.

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
        restarts: failures after which all began anew, oldest first.
        changes: workers that were lost, have left or come while the others went on, oldest first.
        history: of a job file: the points of docs/report.md; of a train loop: all that rank 0 reported.
    """

    metrics: dict[str, Any]
    workers: list[dict[str, Any]]
    checkpoint: pathlib.Path | None
    restarts: list[Restart]
    changes: list[Change]
    history: list[dict[str, Any]]


def print_event(event: Event) -> None:
    """A Trainer's handling of events unless told otherwise: rank 0's and its own lines go to standard output."""
    if event.text and event.rank in (None, 0):
        print(event.text, flush=True)


__all__ = ["AttemptFailed", "Error", "Failure", "code_in", "error", "root_cause"]

# Codes of failures that follow when another rank is lost, and codes of failures that the machine, not the program, may
# have caused.
_CONSEQUENCES = ("aborted", "peer_lost", "timeout")
_WORTH_ANOTHER_TRY = (*_CONSEQUENCES, "system")


@dataclass(frozen=True)
class Failure:
    """How one rank ended.

    Attributes:
        rank: whose end it was.
        text: for the user.
        code: as in bimetal.Error; ``peer_lost`` with ``died`` where the process itself is gone.
        about: the rank that is to blame, where the text names one.
        died: the process or its machine is gone, without a word.
        own: the error is one of the user's Python code.
    """

    rank: int
    text: str
    code: str
    about: int | None = None
    died: bool = False
    own: bool = False

    @property
    def worth_another_try(self) -> bool:
        return self.died or (not self.own and self.code in _WORTH_ANOTHER_TRY)


class AttemptFailed(Exception):
    """One try has failed."""

    def __init__(self, cause: Failure, lost_nodes: frozenset[str] = frozenset(), in_order: bool = False):
        super().__init__(cause.text)
        self.cause = cause
        self.lost_nodes = lost_nodes  # where ranks were of which nothing was heard any more
        self.in_order = in_order  # nothing is lost: a node was ended, and the job has saved and left it


def root_cause(failures: Sequence[Failure]) -> Failure:
    """Which of several to tell the user: a rank that is gone, then an error of its own, then a consequence of one."""
    def order(failure: Failure) -> tuple[bool, bool, int]:
        consequence = failure.code in _CONSEQUENCES and not failure.own
        return (not failure.died, consequence, _CONSEQUENCES.index(failure.code) if consequence else 0)

    return min(failures, key=order)


def code_in(text: str) -> tuple[str | None, int | None]:
    """Code and rank at the end of a message that came through torch: ``… [peer_lost, rank 2]``."""
    found = re.search(r"\[([a-z_]+)(?:, rank (\d+))?\]", text)
    if not found:
        return None, None
    return found[1], None if found[2] is None else int(found[2])
