"""A job file as the program reads it, and the runs that are made of it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

from bimetal._errors import EXIT_STATUSES, Error
from bimetal.command import program

_CHECK_SECONDS = 120.0  # for a program that reads a file; its libraries may lie on a cold disk
_PREFIX = "bimetal: error: "
NOMINAL_EPOCH = 60_000  # samples, until a run has told how many an epoch of its data has


class Job:
    """A job file with what ``--set`` changes.

    Args:
        path: of the file; relative paths in it begin at the current directory.
        settings: ``section.key=value``, as after ``bimetal train --set``.

    Attributes:
        text: the file's.
        values: all keys by section, defaults included; numbers, whole numbers, texts and truth values keep their types.

    Raises:
        bimetal.Error: what the program says of a file, key or value that is wrong.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Sequence[str] = ()):
        self.path = pathlib.Path(path)
        self.settings = list(settings)
        self.values: dict[str, dict[str, Any]] = self._read([])
        self.text = self.path.read_text()

    def check(self, settings: Sequence[str]) -> None:
        """bimetal.Error, as of ``bimetal train --set``, for the first of these that is no key or no value of it."""
        self._read(settings)

    def value(self, key: str) -> Any:
        """The value of ``section.key``, which must exist."""
        section, _, name = key.partition(".")
        return self.values[section][name]

    def change(self, key: str, value: float) -> None:
        """As one more ``--set``; the value must be one of that key's."""
        self.settings.append(f"{key}={value}")
        section, _, name = key.partition(".")
        self.values[section][name] = value

    def write_to(self, folder: pathlib.Path) -> str:
        """Puts the file into a run's folder; its name there."""
        (folder / self.path.name).write_text(self.text)
        return self.path.name

    def base_arguments(self) -> list[str]:
        """``--set`` for any run of this job that has one rank: nothing to share, nobody to meet, data where it lies,
        and no monitor at an address that the next run wants, too."""
        settings = [*self.settings, "parallel.balance=auto", "fabric.transport=tcp", "monitor.listen="]
        if self.value("monitor.trackers") == "auto":
            settings.append("monitor.trackers=[]")
        if (data := self.value("data.path")) and os.path.exists(data):
            settings.append(f"data.path={os.path.abspath(data)}")
        return as_arguments(settings)

    def samples(self, settings: dict[str, str]) -> float:
        """That a run with these changes trains on, an epoch counted as NOMINAL_EPOCH."""
        def number(key: str) -> int:
            return int(settings[key], 0) if key in settings else self.value(key)  # TOML knows 0x10, too

        samples = number("train.epochs") * NOMINAL_EPOCH
        steps = number("train.steps") * number("train.global_batch")
        return float(min(samples, steps) if steps else samples)

    def _read(self, more: Sequence[str]) -> dict[str, dict[str, Any]]:
        command = [program.for_jobs(), "job", str(self.path), *as_arguments([*self.settings, *more]), "--json"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_CHECK_SECONDS,
                                    check=False)
        except subprocess.TimeoutExpired as slow:
            raise Error(f"{command[0]} did not read {self.path} within {_CHECK_SECONDS:.0f} s", "timeout") from slow
        if answer.returncode != 0:
            codes = {status: code for code, status in EXIT_STATUSES.items()}
            raise Error(answer.stderr.strip().removeprefix(_PREFIX), codes.get(answer.returncode, "internal"))
        return json.loads(answer.stdout)


def as_arguments(settings: Sequence[str]) -> list[str]:
    """``["a.b=1"]`` as ``["--set", "a.b=1"]``."""
    return [word for setting in settings for word in ("--set", setting)]
