"""Places of workers that an elastic job has lost, and the actors that are started to take them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError

_LOOK_EVERY = 1.0


class Vacancies:
    """The vacant places of one try. An actor is started as soon as its place's node has room.

    Args:
        start: makes the actor for a place, and asks it who it is; None: there is no room yet.
        most: losses to make good.

    Attributes:
        started: how many have been.
    """

    def __init__(self, start: Callable[[int], tuple[Any, Any] | None], most: int):
        self.started = 0
        self._start = start
        self._most = most
        self._since: dict[int, float] = {}
        self._for_nothing: set[int] = set()  # those that are no losses
        self._coming: dict[int, tuple[Any, Any]] = {}
        self._looked = 0.0

    def add(self, rank: int, counts: bool) -> None:
        self._since[rank] = time.monotonic()
        if not counts:
            self._for_nothing.add(rank)

    def filled(self) -> Iterator[tuple[int, Any, dict[str, Any], float]]:
        """Actors that run by now: the place of each, its description of itself, and the seconds that the place was
        empty."""
        now = time.monotonic()
        if not self._since or now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        for rank in self._since.keys() - self._coming.keys():
            counts = rank not in self._for_nothing
            if self.started + counts <= self._most and (begun := self._start(rank)):
                self._coming[rank] = begun
                self.started += counts
                self._for_nothing.discard(rank)
        for rank, (actor, call) in list(self._coming.items()):
            if not ray.wait([call], timeout=0)[0]:
                continue
            del self._coming[rank]
            try:
                yield rank, actor, ray.get(call), time.monotonic() - self._since.pop(rank)
            except RayError:
                self._looked = now + _LOOK_EVERY  # another one, a little later

    @property
    def coming(self) -> list[Any]:
        """Actors that have been started, and do not run yet."""
        return [actor for actor, _ in self._coming.values()]
