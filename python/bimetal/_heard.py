"""Streams whose lines somebody else reads, too."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TextIO

MOST_OF_LINE = 500  # characters that are handed on


class Heard(io.TextIOBase):
    """A stream as before, whose lines are also for people who watch the job (docs/monitoring.md)."""

    def __init__(self, stream: TextIO, tell: Callable[[str], None]):
        self.stream, self._tell, self._begun = stream, tell, ""

    def write(self, text: str) -> int:
        *lines, rest = (self._begun + text).split("\n")
        self._begun = rest[-MOST_OF_LINE:]
        for line in lines:
            if line.strip():
                self._tell(line[-MOST_OF_LINE:])
        return self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def __getattr__(self, name: str) -> Any:  # buffer and the like
        return getattr(self.stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding
