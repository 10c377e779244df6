"""What the ranks that Python starts print, each line with its rank's number. When one fails, the others soon do for
want of it: of their tracebacks only that of the cause is shown.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, TextIO

_BEGINNING = "Traceback (most recent call last):"
_SECONDS_TO_FOLLOW = 5.0  # within which a traceback may be about the loss of another rank
_SECONDS_TO_HOLD = 2.0  # until it must have come out that a rank has failed
_SECONDS_OF_ENDING = 1.0  # between two lines of a rank that ends by an exception
_SECONDS_OF_REWRITING = 1.0  # between two states of a line that goes back to its beginning, as progress bars do
_SECONDS_TO_SHOW = 2.0  # for the last lines, where the terminal stands still
_MOST_WAITING = 1000  # lines; whoever prints more than are read waits, as without this


class RankOutput:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        # One thread writes, so that a terminal that stands still holds up nobody who watches the ranks.
        self._lines: queue.Queue[tuple[TextIO, str] | None] = queue.Queue(_MOST_WAITING)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()
        self._first: tuple[int, float] | None = None  # whose traceback came first, and when
        self._said: dict[int, float] = {}  # by rank: when it last wrote a line to stderr
        self._held: dict[int, tuple[float, list[str]]] = {}  # by rank: since when, and the lines
        self._cause: int | None = None
        self._left_out: set[int] = set()

    def read(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Shows what it prints from now on, where that comes by pipes."""
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source:
                reader = threading.Thread(target=self._show, args=(rank, source, target), daemon=True)
                reader.start()
                self._readers.append(reader)

    def first_to_complain(self) -> int | None:
        """The rank whose traceback is newest among those that follow from no other's."""
        with self._lock:
            return self._first[0] if self._first and time.monotonic() - self._first[1] < _SECONDS_TO_FOLLOW else None

    def name_cause(self, rank: int) -> None:
        """The job has failed because of this rank."""
        with self._lock:
            self._cause = rank
            released = self._release(0.0) if self._first is None or self._first[0] != rank else []
            self._left_out |= self._held.keys()
        self._hand_over(released)

    def left_out(self) -> list[int]:
        """Ranks whose tracebacks have not been shown."""
        with self._lock:
            return sorted(self._left_out)

    def look(self) -> None:
        """To be called now and then: what has been held back for nothing is shown."""
        with self._lock:
            released = self._release(_SECONDS_TO_HOLD) if self._cause is None else []
        self._hand_over(released)

    def end(self, seconds: float) -> None:
        """Once the ranks have ended: waits so long for what they have left behind."""
        until = time.monotonic() + seconds
        for reader in self._readers:
            reader.join(max(0.0, until - time.monotonic()))
        with self._lock:
            released = self._release(0.0) if self._cause is None else []
        self._hand_over(released)
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_SECONDS_TO_SHOW)
        self._writer.join(_SECONDS_TO_SHOW)

    def _write(self) -> None:
        for target, text in iter(self._lines.get, None):
            with contextlib.suppress(OSError, ValueError):  # whoever reads has gone
                target.write(text)
                target.flush()

    def _hand_over(self, texts: list[str]) -> None:
        with contextlib.suppress(queue.Full):
            for text in texts:
                self._lines.put((sys.stderr, text), timeout=_SECONDS_TO_SHOW)

    def _show(self, rank: int, source: IO[bytes], target: TextIO) -> None:
        with contextlib.suppress(OSError, ValueError), source:  # the pipe has gone
            for line in _lines(source):
                text = f"[{rank}] {line.decode(errors='replace').rstrip()}\n"
                with self._lock:
                    self._note_line(rank, target is sys.stderr)
                    if target is sys.stderr and self._holds_back(rank, text):
                        continue
                self._lines.put((target, text))

    def _note_line(self, rank: int, is_error: bool) -> None:
        """A rank that goes on after a traceback has caught what it told of, and fails by nothing."""
        now = time.monotonic()
        before = self._said.get(rank, now)
        if is_error:
            self._said[rank] = now
        if self._cause is not None or self._first is None or self._first[0] != rank:
            return
        # What it has printed before may come later by the other pipe.
        since = before if is_error else self._first[1]
        if now - since > _SECONDS_OF_ENDING:
            self._first = None

    def _holds_back(self, rank: int, text: str) -> bool:
        """Whether this is part of a traceback that may follow from another rank's."""
        if rank not in self._held:
            if not text.endswith(f" {_BEGINNING}\n"):
                return False
            now = time.monotonic()
            first = self._first
            if first is None or first[0] == rank or (now - first[1] > _SECONDS_TO_FOLLOW and self._cause is None):
                if self._cause is None:
                    self._first = (rank, now)
                return False
            if self._cause not in (None, first[0]):
                return False
            self._held[rank] = (now, [])
            if self._cause is not None:
                self._left_out.add(rank)
        self._held[rank][1].append(text)
        return True

    def _release(self, older_than: float) -> list[str]:
        now = time.monotonic()
        old = [rank for rank, (since, _) in self._held.items() if now - since >= older_than]
        return ["".join(self._held.pop(rank)[1]) for rank in old]


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    """As they end; of one that is rewritten, what it has been now and then, and at last."""
    rest, shown = b"", time.monotonic()
    while chunk := source.read1():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r").rpartition(b"\r")[2]
        before, rewritten, now = rest.rpartition(b"\r")
        if rewritten and time.monotonic() - shown > _SECONDS_OF_REWRITING:
            shown, rest = time.monotonic(), now
            yield before.rpartition(b"\r")[2]
    if rest:
        yield rest.rstrip(b"\r").rpartition(b"\r")[2]
