"""One run of the program on one device, and how it ended."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Any

NOMINAL_EPOCH = 60_000  # samples, until a run has told how many an epoch of its data has


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
    """What to run: ``bimetal ARGUMENTS --worker DEVICE`` in a folder of its own.

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
