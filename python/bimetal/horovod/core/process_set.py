"""Parts of the ranks that have collectives of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bimetal.horovod.core import world
from bimetal.horovod.core.engine import Engine
from bimetal.horovod.core.misuse import Misuse


class ProcessSet:
    """Some of the ranks. It has collectives once ``add_process_set`` or ``init(process_sets=…)`` has been given it.

    Attributes:
        ranks: those of all ranks that belong to it, in ascending order. Their order is that of the set's own ranks,
            and of what its collectives gather.
        process_set_id: 0 for all ranks, from 1 for others, the same on all ranks; None for one that is not added.
    """

    process_set_id: int | None = None

    def __init__(self, ranks: Iterable[int]):
        given = [int(rank) for rank in ranks]
        self._ranks = sorted(given)
        if not given or len(set(given)) < len(given) or self._ranks[0] < 0:
            raise Misuse(f"a process set is a list of ranks, at least one and none twice, not {given}")

    @property
    def ranks(self) -> list[int]:
        return list(self._ranks)

    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def included(self) -> bool:
        """Whether this process is one of them."""
        return world.current().rank in self.ranks

    def rank(self) -> int:
        """This process's number among them. Raises ValueError where it is none."""
        if not self.included():
            raise Misuse(f"rank {world.current().rank} is not in {self}")
        return self.ranks.index(world.current().rank)

    def __str__(self) -> str:
        return f"the process set of ranks {self.ranks}"


class _AllRanks(ProcessSet):
    """All ranks, which is what a collective is of that names no process set."""

    process_set_id = 0

    def __init__(self) -> None:
        """There are as many as init() finds."""

    @property
    def ranks(self) -> list[int]:
        return list(range(world.current().size))


global_process_set = _AllRanks()


def or_all(process_set: Any) -> ProcessSet:
    """None is Horovod's word for all ranks, too. Raises ValueError for what is no process set of this world."""
    if process_set is None or process_set is global_process_set:
        return global_process_set
    if not isinstance(process_set, ProcessSet):
        raise Misuse(f"process_set is a hvd.ProcessSet, not {type(process_set).__name__}")
    if world.current().sets.get(process_set.process_set_id) is not process_set:
        raise Misuse(f"{process_set} has not been added, or been removed since, or with the world that it was added to: "
                     f"call hvd.add_process_set() on all ranks")
    return process_set


def engine_of(process_set: Any) -> Engine:
    """What runs its collectives. Raises ValueError where this process is not of it."""
    process_set = or_all(process_set)
    if process_set is global_process_set:
        return world.current().engine
    process_set.rank()
    return world.current().set_engines[process_set.process_set_id]
