"""Horovod's timeline: the waits and times of this process's collectives, for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from bimetal._errors import Error
from bimetal.horovod.core.request import Request


class Timeline:
    """A file of trace events, each written when its event is over. Thread-safe."""

    def __init__(self, path: str, mark_cycles: bool):
        try:
            self._file = open(path, "w", buffering=1, encoding="utf-8")  # by lines: a killed process leaves its lines
                                                                         # so far
        except OSError as error:
            raise Error(f"the timeline {path} cannot be written: {error.strerror}", "system") from error
        self._marks_cycles = mark_cycles
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._lanes: dict[str, int] = {}
        self._file.write("[\n")
        self._last = json.dumps({"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "cycles"}})

    def cycle(self) -> None:
        """A round of negotiation begins."""
        if self._marks_cycles:
            self._write({"ph": "i", "s": "g", "pid": 0, "name": "CYCLE_START", "ts": self._since(time.monotonic())})

    def collective(self, request: Request, begun: float, ended: float) -> None:
        """One is over: it was asked for, then begun on all ranks, then ended, by time.monotonic()."""
        signature = request.signature
        what = signature.kind.upper()
        lane = self._lane_of(signature.name)
        self._span(f"NEGOTIATE_{what}", lane, request.asked, begun, {})
        self._span(what, lane, begun, ended, {
            "tensors": [f"{dtype} {list(shape)}" for dtype, shape in signature.tensors]})

    def close(self) -> None:
        """Later events are dropped."""
        with self._lock:
            if not self._file.closed:
                self._file.write(f"{self._last}\n]\n")
                self._file.close()

    def _lane_of(self, name: str) -> int:
        with self._lock:
            known = name in self._lanes
            lane = self._lanes.setdefault(name, len(self._lanes) + 1)
        if not known:
            self._write({"ph": "M", "pid": lane, "name": "process_name", "args": {"name": name}})
        return lane

    def _span(self, name: str, lane: int, begin: float, end: float, more: dict[str, Any]) -> None:
        self._write({"ph": "X", "pid": lane, "tid": 0, "name": name, "ts": self._since(begin),
                     "dur": round((end - begin) * 1e6, 3), "args": more})

    def _since(self, when: float) -> float:
        """Microseconds, as the format has them."""
        return round((when - self._began) * 1e6, 3)

    def _write(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._file.closed:
                return
            # The last has no comma behind it: it is held back until it is known whether there is another.
            self._file.write(f"{self._last},\n")
            self._last = json.dumps(event)


_running: Timeline | None = None


def running() -> Timeline | None:
    """The timeline in which collectives are recorded, if there is one."""
    return _running


def set_running(timeline: Timeline | None) -> None:
    global _running
    _running = timeline
