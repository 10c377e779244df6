"""A tracker in a thread of its own: one that is slow holds up neither the others nor the reading of the monitor."""

from __future__ import annotations

import collections
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from bimetal.trackers.figures import Checkpoint, Figures, Item, Words

_MOST_AT_ONCE = 50  # figures of as many steps in one call
_MOST_WAITING = 10_000  # items; of more, every second figure is left out


class Feed:
    """
    Args:
        name: the tracker's.
        make: starts a run of it, given the task.
        say: is given a line for people.
    """

    def __init__(self, name: str, make: Callable[[dict[str, Any]], Any], task: dict[str, Any], say: Callable[[str], None]):
        self._name, self._make, self._task, self._say = name, make, task, say
        self._items: collections.deque[Item | str] = collections.deque()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        with self._changed:
            if isinstance(item, Checkpoint):  # the newest will do for one that is slow
                self._items = collections.deque(item for item in self._items if not isinstance(item, Checkpoint))
            self._items.append(item)
            if len(self._items) > _MOST_WAITING:
                self._items = collections.deque(item for place, item in enumerate(self._items) if place % 2 or not isinstance(item, Figures))
            self._changed.notify()

    def end(self, how: str) -> None:
        """The run has ended, as "finished", "interrupted", "moved" (to another rank) or "failed"."""
        with self._changed:
            self._items.append(how)
            self._changed.notify()

    def join(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._say(f"tracker {self._name}: it does not end; what it had sent or written is there")

    def _work(self) -> None:
        try:
            tracker = self._make(self._task)
            self._say(f"tracker {self._name}: {tracker.where}")
            while not isinstance(item := self._next(), str):
                self._hand_on(tracker, item)
            tracker.end(item)
        except ModuleNotFoundError as missing:
            self._say(f"note: tracker {self._name}: this Python has no package {missing.name}: pip install {missing.name}")
        except Exception as problem:  # whatever a tracker's package thinks of
            traceback.print_exc()
            words = str(problem).strip().splitlines()
            self._say(f"note: tracker {self._name} has stopped: {words[0] if words else type(problem).__name__}")

    def _next(self) -> list[Figures] | Words | Checkpoint | str:
        """Figures that wait come together: a tracker that takes time for each call catches up."""
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            figures = []
            while self._items and isinstance(self._items[0], Figures) and len(figures) < _MOST_AT_ONCE:
                figures.append(self._items.popleft())
            return figures or self._items.popleft()

    def _hand_on(self, tracker: Any, item: list[Figures] | Words | Checkpoint) -> None:
        match item:
            case list():
                tracker.figures(item)
            case Words(step, title, text, level):
                tracker.words(step, title, text, level)
            case Checkpoint(step, path):
                try:
                    tracker.checkpoint(step, path)
                except (OSError, ValueError) as problem:
                    if os.path.isdir(path):  # else it was removed for a newer one meanwhile
                        raise
                    print(f"checkpoint of step {step}: {problem}")
