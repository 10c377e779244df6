"""What people see while runs are at work and when they are done: one live line, lines that stay, tables."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

_PLAIN_SECONDS = 10.0  # between two lines of progress where none can be rewritten


class Screen:
    """Standard output. On a terminal that somebody looks at the live line is rewritten; elsewhere a plain one appears now and then."""

    def __init__(self) -> None:
        self._live = _may_rewrite()
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
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # nobody reads any more: no reason to end what runs
            sys.stdout = open(os.devnull, "w")


def _may_rewrite() -> bool:
    """Whether standard output is a terminal that somebody looks at: base/console.h has the same rule."""
    unseen = any(os.environ.get(name) for name in ("NO_COLOR", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"))
    return sys.stdout.isatty() and not unseen and os.environ.get("TERM") not in (None, "", "dumb")


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
