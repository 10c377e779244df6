"""From tensors to handles: what the PyTorch and TensorFlow functions call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bimetal.horovod.core import world
from bimetal.horovod.core.process_set import engine_of
from bimetal.horovod.core.request import Handle, ReduceOp, make_request


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
    of it. What cannot work without it (a broadcast from it, Min, Max, Product, alltoall) is an error
    ``unsupported`` on the ranks that ask for it.

    Args:
        device: of Horovod's signature, without effect.

    Returns:
        The rank that was the last to join; its model has seen most.
    """
    return wait(world.current().engine.join())


def barrier(process_set: Any = None) -> None:
    """Waits until every rank (of the process set) has called it, or joined."""
    wait(submit("barrier", None, [], lambda _: None, process_set))


def choose_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Horovod's two ways to say it: the old ``average`` and ``op``, whose default is Average."""
    if average is not None and op is not None:
        raise ValueError("give either op or average, which is its old form, not both")
    if op is not None:
        return ReduceOp(op)
    return ReduceOp.Sum if average is False else ReduceOp.Average
