"""From tensors to handles, for all ranks or a process set. The PyTorch and TensorFlow functions call these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from bimetal.horovod.core import world
from bimetal.horovod.core.engine import Engine
from bimetal.horovod.core.request import Handle, Misuse, ReduceOp, make_request


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
    """All ranks: the process set of a collective that names none."""

    process_set_id = 0

    def __init__(self) -> None:
        """There are as many as init() finds."""

    @property
    def ranks(self) -> list[int]:
        return list(range(world.current().size))


global_process_set = _AllRanks()


def or_all(process_set: Any) -> ProcessSet:
    """None is Horovod's word for all ranks, too. Raises ValueError for an object that is no process set of this
    world."""
    if process_set is None or process_set is global_process_set:
        return global_process_set
    if not isinstance(process_set, ProcessSet):
        raise Misuse(f"process_set is a hvd.ProcessSet, not {type(process_set).__name__}")
    if world.current().sets.get(process_set.process_set_id) is not process_set:
        raise Misuse(f"{process_set} has not been added, or been removed since, or with the world that it was added to: "
                     f"call hvd.add_process_set() on all ranks")
    return process_set


def engine_of(process_set: Any) -> Engine:
    """The engine that runs its collectives. Raises ValueError if this process is not in it."""
    process_set = or_all(process_set)
    if process_set is global_process_set:
        return world.current().engine
    process_set.rank()
    return world.current().set_engines[process_set.process_set_id]


def submit(kind: str, name: str | None, tensors: Sequence[torch.Tensor], convert: Callable[[Any], Any],
           process_set: Any = None, **more: Any) -> Handle:
    """Queues a collective of a process set, or of all ranks. ``tensors`` belong to the engine until it is done. Ranks are
    named by their numbers among all."""
    engine = engine_of(process_set)
    full_name = f"{kind}.{name}" if name else engine.name_for(kind)
    return engine.submit(make_request(kind, full_name, tensors, convert, **more))


def wait(handle: Handle) -> Any:
    """The result of a handle; raises bimetal.Error with what went wrong."""
    return handle.wait(world.warning_seconds())


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and takes part in the other ranks' collectives, with zeros, until all
    have said so.

    Sums and averages (over all ranks, those that have joined too) go on without this rank; allgather gets no rows
    of it. Calls that cannot work without it (a broadcast from it, Min, Max, Product, alltoall) are an error
    ``unsupported`` on the ranks that make them.

    Args:
        device: of Horovod's signature, without effect.

    Returns:
        The rank that was the last to join; its model has seen most.
    """
    return wait(world.current().engine.join())


def barrier(process_set: Any = None) -> None:
    """Waits until every rank of the process set has called it, or joined."""
    wait(submit("barrier", None, [], lambda _: None, process_set))


def choose_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Horovod's two ways to say it: the old ``average`` and ``op``, whose default is Average."""
    if average is not None and op is not None:
        raise ValueError("give either op or average, which is its old form, not both")
    if op is not None:
        return ReduceOp(op)
    return ReduceOp.Sum if average is False else ReduceOp.Average
