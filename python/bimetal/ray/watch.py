"""The reports of one try's actors, which of them have failed, and which leave with their nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from bimetal.ray.head import News
from bimetal.ray.result import AttemptFailed, Failure, root_cause

POLL_SECONDS = 5.0  # that an actor holds a question for events


class Watched:
    """The actors' mailboxes, asked for news all at once. An interrupted ``hear`` loses nothing."""

    def __init__(self, actors: Sequence[Any]):
        self._actors = actors
        self._next = [0] * len(actors)
        self._heard = [time.monotonic()] * len(actors)
        self._open = set(range(len(actors)))
        self._asked: dict[Any, int] = {}

    @property
    def open(self) -> frozenset[int]:
        """Ranks that have more to say."""
        return frozenset(self._open)

    def watch(self, rank: int) -> None:
        """Another actor is in that rank's place."""
        self._next[rank], self._heard[rank] = 0, time.monotonic()
        self._asked = {call: other for call, other in self._asked.items() if other != rank}
        self._open.add(rank)

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


_GRACE_SECONDS = 2.0  # for the others to say why, after one has failed


class Losses:
    """Failures of a job of ``workers`` ranks and then ``servers`` parameter servers.

    Every failure is the job's unless it is elastic, or has servers. Then the job is lost with a server, with its last worker,
    or by an error that others would make, too.

    Attributes:
        open: failures by rank that nobody has been told of.
        elastic: whether the workers that are left go on.
    """

    def __init__(self, workers: int, servers: int):
        self.open: dict[int, Failure] = {}
        self.elastic = False
        self._workers = workers
        self._servers = servers
        self._since: dict[int, float] = {}
        self._told: set[int] = set()
        self._newcomers: set[int] = set()

    def add(self, failure: Failure) -> None:
        self.open.setdefault(failure.rank, failure)
        self._since.setdefault(failure.rank, time.monotonic())

    def fatal(self) -> bool:
        """Whether the job cannot go on."""
        if not self.open or not (self._servers or self.elastic):
            return bool(self.open)
        lost_workers = sum(rank < self._workers for rank in self.open) + len(self._told)
        return (lost_workers == self._workers or any(rank >= self._workers for rank in self.open)
                or self.elastic and any(not failure.worth_another_try and rank not in self._newcomers
                                        for rank, failure in self.open.items()))

    def decided(self) -> bool:
        """Whether it cannot, and nothing that is still to come would change what the user is told; or has come in
        time."""
        if not self.fatal():
            return False
        cause = root_cause(list(self.open.values()))
        everyone = len(self.open) + len(self._told) == self._workers + self._servers
        return cause.died or cause.own or everyone or self._age() > _GRACE_SECONDS

    @property
    def gone(self) -> frozenset[int]:
        """Workers that the job goes on without."""
        return frozenset(self._told)

    def survived(self, at_the_end: bool = False) -> list[Failure]:
        """Those that the job goes on without, each once: nothing has turned up meanwhile that they follow from, or will,
        since the job is done (``at_the_end``)."""
        if self.fatal():
            return []
        over = [failure for rank, failure in self.open.items()
                if at_the_end or time.monotonic() - self._since[rank] > _GRACE_SECONDS]
        for failure in over:
            del self.open[failure.rank]
            self._told.add(failure.rank)
        return over

    def leave(self, rank: int) -> None:
        """A worker has gone in good order, and the job goes on without it."""
        self._told.add(rank)

    def come(self, rank: int) -> None:
        """Another worker is in that place. If the others refuse it, that is its loss alone."""
        self._told.discard(rank)
        self._newcomers.add(rank)
        self._since.pop(rank, None)

    def _age(self) -> float:
        return time.monotonic() - min(self._since[rank] for rank in self.open)


SAVE_SECONDS = 15.0  # that a node waits for jobs to save and leave; without any it ends at once
_HAND_OVER_SECONDS = 10.0  # within that, for a train loop's next checkpoint


class Departures:
    """The ranks of one try whose nodes are being ended.

    Args:
        nodes: each rank's.
        news: of the cluster; when that is over all ranks have to leave.

    Attributes:
        ranks: those that have to leave.
        of_all: why all of them do, if the cluster is over.
    """

    def __init__(self, nodes: Sequence[str], news: News):
        self.ranks: set[int] = set()
        self.of_all: str | None = None
        self._nodes = list(nodes)
        self._news = news
        self._since = 0.0

    def notice(self) -> list[int]:
        """Ranks that have to leave since it was asked last; all, once the cluster is over."""
        new: list[int] = []
        if self.of_all:
            return new
        self.of_all = self._news.over
        for rank, node in enumerate(self._nodes):
            if self.of_all or node in self._news.leaving and rank not in self.ranks:
                new.append(rank)
        if new and not self.ranks:
            self._since = time.monotonic()
        self.ranks.update(new)
        return new

    def come(self, rank: int, node: str) -> None:
        """Another actor is in that rank's place, on that node."""
        self._nodes[rank] = node
        self.ranks.discard(rank)

    def overdue(self, stoppable: bool) -> bool:
        """Whether the ranks have had their time to save; those that can be told to take it where the cluster lasts."""
        if not self.ranks or stoppable and not self.of_all:
            return False
        return time.monotonic() - self._since > (SAVE_SECONDS if stoppable else _HAND_OVER_SECONDS)

    def end_of_try(self, name: str) -> AttemptFailed:
        """The error that ends the try, once all is saved; ``name`` is that of the first such rank."""
        rank = min(self.ranks)
        return AttemptFailed(Failure(rank, f"{name} has left: its node was ended", "peer_lost", rank, died=True),
                             frozenset(self._nodes[each] for each in self.ranks), in_order=True)
