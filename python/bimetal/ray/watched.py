"""What the actors of one try say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

POLL_SECONDS = 5.0  # that an actor holds a question for events


class Watched:
    """The actors' mailboxes, asked for news all at once. An interrupted ``hear`` loses nothing."""

    def __init__(self, actors: Sequence[Any]):
        self._actors = actors
        self._next = [0] * len(actors)
        self._heard = [time.monotonic()] * len(actors)
        self._open = set(range(len(actors)))  # ranks that have more to say
        self._asked: dict[Any, int] = {}

    @property
    def open(self) -> bool:
        return bool(self._open)

    def hear(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """Events, and a RayActorError in the place of those of a rank that is gone."""
        for rank in self._open.difference(self._asked.values()):
            self._asked[self._actors[rank].events.remote(self._next[rank], POLL_SECONDS)] = rank
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        for call in ready:
            rank = self._asked.pop(call)
            self._heard[rank] = time.monotonic()
            try:
                end, events = ray.get(call)
            except RayActorError as gone:
                self._open.discard(rank)
                yield rank, gone
                continue
            for number, event in enumerate(events, end - len(events)):
                self._next[rank] = number + 1
                if event["kind"] in ("ended", "failed"):
                    self._open.discard(rank)
                yield rank, event

    def silent(self, seconds: float) -> list[int]:
        """Ranks that have not answered for so long; they are not asked again."""
        now = time.monotonic()
        ranks = [rank for rank in self._asked.values() if now - self._heard[rank] > seconds]
        self._open.difference_update(ranks)
        self._asked = {call: rank for call, rank in self._asked.items() if rank not in ranks}
        return ranks
