"""Ranks of one try that have failed: whether the job can do without them, and until when to wait for the reason."""

from __future__ import annotations

import time

from bimetal.ray.failure import Failure, root_cause

_GRACE_SECONDS = 2.0  # for the others to say why, after one has failed


class Losses:
    """Failures of a job of ``workers`` ranks and then ``servers`` parameter servers.

    Without servers every failure is the job's. With them the job is lost with a server, or with its last worker.

    Attributes:
        open: failures by rank that nobody has been told of.
    """

    def __init__(self, workers: int, servers: int):
        self.open: dict[int, Failure] = {}
        self._workers = workers
        self._servers = servers
        self._since: dict[int, float] = {}
        self._told: set[int] = set()

    def add(self, failure: Failure) -> None:
        self.open.setdefault(failure.rank, failure)
        self._since.setdefault(failure.rank, time.monotonic())

    def fatal(self) -> bool:
        """Whether the job cannot go on."""
        lost_workers = sum(rank < self._workers for rank in self.open) + len(self._told)
        return bool(self.open) and (not self._servers or lost_workers == self._workers
                                    or any(rank >= self._workers for rank in self.open))

    def decided(self) -> bool:
        """Whether it cannot, and nothing that is still to come would change what the user is told; or has come in
        time."""
        if not self.fatal():
            return False
        cause = root_cause(list(self.open.values()))
        everyone = len(self.open) + len(self._told) == self._workers + self._servers
        return cause.died or cause.own or everyone or self._age() > _GRACE_SECONDS

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

    def _age(self) -> float:
        return time.monotonic() - min(self._since[rank] for rank in self.open)
