"""The log of a rank of a loop, beside its figures: its output, and Python's warnings. progress/rank_log.h is the same
for a job's rank."""

from __future__ import annotations

import collections
import contextlib
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

from bimetal._heard import MOST_OF_LINE, Heard

_MOST_WAITING = 16 << 10  # characters; of more the oldest are dropped
_MOST_AT_ONCE = 4 << 10
_BETWEEN_SECONDS = 0.5  # two times that the others are told

Line = tuple[float, str, str]  # Unix time, kind, text


class RankLog:
    """Listens from when it is made until ``close``. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: collections.deque[Line] = collections.deque()
        self._size = self._dropped = 0
        self._next = 0.0
        self._busy = threading.local()  # with a warning, which is not to be heard as output once more
        self._streams = {name: getattr(sys, name) for name in ("stdout", "stderr") if getattr(sys, name) is not None}
        self._heard = {name: Heard(stream, self._output) for name, stream in self._streams.items()}
        self._show_before = warnings.showwarning
        self._show: Any = self._warning  # the same object each time
        for name, heard in self._heard.items():
            setattr(sys, name, heard)
        warnings.showwarning = self._show
        self._hand_loggers(self._streams, self._heard)

    def close(self) -> None:
        """Streams that others have put in the place of these since then stay."""
        for name, heard in self._heard.items():
            if getattr(sys, name) is heard:
                setattr(sys, name, self._streams[name])
        if warnings.showwarning is self._show:
            warnings.showwarning = self._show_before
        self._hand_loggers(self._heard, self._streams)

    def say(self, kind: str, text: str) -> None:
        text = text.encode(errors="replace").decode()
        line = (time.time(), kind, text if len(text) <= MOST_OF_LINE else text[:MOST_OF_LINE] + "…")
        with self._lock:
            self._lines.append(line)
            self._size += len(line[2])
            while self._size > _MOST_WAITING:
                self._size -= len(self._lines.popleft()[2])
                self._dropped += 1

    def take_due(self) -> list[Line]:
        """The oldest, in their order; nothing shortly after the last ones."""
        with self._lock:
            if not self._lines or time.monotonic() < self._next:
                return []
            self._next = time.monotonic() + _BETWEEN_SECONDS
            taken: list[Line] = []
            if self._dropped:
                taken.append((time.time(), "warning", f"{self._dropped} lines before these are left out"))
                self._dropped = 0
            size = 0
            while self._lines and (size := size + len(self._lines[0][2])) <= _MOST_AT_ONCE:
                taken.append(self._lines.popleft())
                self._size -= len(taken[-1][2])
            return taken

    def _output(self, line: str) -> None:
        if not getattr(self._busy, "now", False):
            self.say("output", line)

    def _warning(self, message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None) -> None:
        self.say("warning", f"{category.__name__}: {message} ({filename}:{lineno})")
        with self._unheard():
            self._show_before(message, category, filename, lineno, file, line)

    @contextlib.contextmanager
    def _unheard(self) -> Iterator[None]:
        self._busy.now = True
        try:
            yield
        finally:
            self._busy.now = False

    @staticmethod
    def _hand_loggers(before: dict[str, Any], after: dict[str, Any]) -> None:
        """Those that were set up before keep the stream of then."""
        for handler in logging.getLogger().handlers:
            for name, stream in before.items():
                if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                    handler.setStream(after[name])
