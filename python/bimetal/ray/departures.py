"""Nodes that are ended in good order while ranks of a job run there, by Ray's drain."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bimetal.ray import cluster
from bimetal.ray.failure import AttemptFailed, Failure

_LOOK_EVERY = 0.5  # seconds between two questions to Ray
HAND_OVER_SECONDS = 10.0  # for a train loop's next checkpoint; a node waits some seconds longer (run_node.py)


class Departures:
    """Of one try's ranks those whose nodes are being ended.

    Args:
        nodes: each rank's.
    """

    def __init__(self, nodes: Sequence[str]):
        self.ranks: set[int] = set()
        self._nodes = nodes
        self._since = 0.0
        self._looked = 0.0

    def notice(self) -> list[int]:
        """Ranks whose nodes have begun to leave since it was asked last; asks Ray now and then."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return []
        self._looked = now
        leaving = cluster.leaving_nodes()
        new = [rank for rank, node in enumerate(self._nodes) if node in leaving and rank not in self.ranks]
        if new and not self.ranks:
            self._since = now
        self.ranks.update(new)
        return new

    def overdue(self) -> bool:
        """Whether a rank that can't be told to save has had its time to do so by itself."""
        return bool(self.ranks) and time.monotonic() - self._since > HAND_OVER_SECONDS

    def end_of_try(self, name: str) -> AttemptFailed:
        """What ends the try, once all is saved; ``name`` is that of the first such rank."""
        rank = min(self.ranks)
        return AttemptFailed(Failure(rank, f"{name} has left: its node was ended", "peer_lost", rank, died=True),
                             frozenset(self._nodes[each] for each in self.ranks), in_order=True)
