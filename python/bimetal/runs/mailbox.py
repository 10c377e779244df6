"""What a rank has to tell the driver, until the driver asks."""

from __future__ import annotations

import threading
import time
from typing import Any

_MOST_LINES = 10_000  # lines of output that wait; older ones give way


class Mailbox:
    """Events in order, numbered from 0. Thread-safe."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._first = 0  # number of the oldest that is kept
        self._changed = threading.Condition()

    def put(self, kind: str, **details: Any) -> None:
        with self._changed:
            self._events.append({"kind": kind, **details})
            if kind == "line" and len(self._events) > _MOST_LINES and self._events[0]["kind"] == "line":
                del self._events[0]
                self._first += 1
            self._changed.notify_all()

    def take(self, after: int, seconds: float) -> tuple[int, list[dict[str, Any]]]:
        """The events from number ``after`` on, and the number that comes next; waits so long for the first one."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._first + len(self._events) <= after:
                rest = until - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
            del self._events[:max(0, after - self._first)]  # taken before
            self._first = max(self._first, after)
            return self._first + len(self._events), list(self._events)
