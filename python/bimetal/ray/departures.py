"""Nodes that are ended in good order while ranks of a job run there, by Ray's drain, or with the whole cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bimetal.ray.failure import AttemptFailed, Failure
from bimetal.ray.head import News

SAVE_SECONDS = 15.0  # that a node waits for jobs to save and leave; without any it ends at once
_HAND_OVER_SECONDS = 10.0  # within that, for a train loop's next checkpoint


class Departures:
    """Of one try's ranks those whose nodes are being ended.

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
        self._nodes = nodes
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

    def overdue(self, stoppable: bool) -> bool:
        """Whether the ranks have had their time to save; those that can be told to take it where the cluster lasts."""
        if not self.ranks or stoppable and not self.of_all:
            return False
        return time.monotonic() - self._since > (SAVE_SECONDS if stoppable else _HAND_OVER_SECONDS)

    def end_of_try(self, name: str) -> AttemptFailed:
        """What ends the try, once all is saved; ``name`` is that of the first such rank."""
        rank = min(self.ranks)
        return AttemptFailed(Failure(rank, f"{name} has left: its node was ended", "peer_lost", rank, died=True),
                             frozenset(self._nodes[each] for each in self.ranks), in_order=True)
