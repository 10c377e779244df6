"""Collectives on PyTorch tensors that wait for their result; gradients.py has what is differentiable of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bimetal.horovod.core.process_set import global_process_set
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.core.submit import choose_op, wait
from bimetal.horovod.torch import async_ops, gradients
from bimetal.horovod.torch.async_ops import Average
from bimetal.horovod.torch.compression import Compression


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: type = Compression.none, op: ReduceOp | None = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, process_set: Any = global_process_set) -> torch.Tensor:
    """Combines the ranks' tensors of one shape and type. Differentiable.

    Args:
        tensor: any shape and numeric type, on any device; it stays as it is.
        average: the old form of op: True is Average, False is Sum.
        name: by which the ranks' calls find each other; without one, the order of calls says it.
        compression: ``Compression.none`` or ``Compression.fp16``.
        op: Average (of integers without their fraction), Sum, Min, Max or Product.
        prescale_factor, postscale_factor: to multiply with before and after.

    Returns:
        A new tensor, the same on all ranks.

    Raises:
        bimetal.Error: ``call_mismatch`` where shapes, types or ops differ, ``peer_lost``, ``timeout``,
            ``unsupported`` for Adasum.
    """
    if tensor.requires_grad:
        op = choose_op(average, op)
        return gradients.Allreduce.apply(name, compression, op, prescale_factor, postscale_factor, process_set,
                                         tensor)[0]
    small, context = compression.compress(tensor)
    handle = async_ops.allreduce_async(small, average, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(wait(handle), context)


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: Any = global_process_set) -> torch.Tensor:
    """``allreduce`` in place; returns the tensor itself. Not differentiable."""
    return wait(async_ops.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                      compression: type = Compression.none, op: ReduceOp | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: Any = global_process_set) -> list[torch.Tensor]:
    """``allreduce`` of several tensors as one exchange; none is there before all are. Differentiable."""
    if any(tensor.requires_grad for tensor in tensors):
        return list(gradients.Allreduce.apply(name, compression, choose_op(average, op), prescale_factor,
                                              postscale_factor, process_set, *tensors))
    pairs = [compression.compress(tensor) for tensor in tensors]
    handle = async_ops.grouped_allreduce_async([small for small, _ in pairs], average, name, op, prescale_factor,
                                               postscale_factor, process_set)
    return [compression.decompress(result, context)
            for result, (_, context) in zip(wait(handle), pairs, strict=True)]


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                       op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: Any = global_process_set) -> list[torch.Tensor]:
    """``grouped_allreduce`` in place."""
    return wait(async_ops.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor,
                                                   process_set))


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> torch.Tensor:
    """Joins the ranks' rows in order of rank. Differentiable.

    Args:
        tensor: (n, …): n may differ between ranks and be 0, the other dimensions and the type may not.
        name: as for allreduce.

    Returns:
        (Σ n, …), the same on all ranks.
    """
    if tensor.requires_grad:
        return gradients.Allgather.apply(name, process_set, tensor)[0]
    return wait(async_ops.allgather_async(tensor, name, process_set))


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: Any = global_process_set) -> list[torch.Tensor]:
    """``allgather`` of several tensors at once. Differentiable."""
    if any(tensor.requires_grad for tensor in tensors):
        return list(gradients.Allgather.apply(name, process_set, *tensors))
    return wait(async_ops.grouped_allgather_async(tensors, name, process_set))


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: Any = global_process_set) -> torch.Tensor:
    """The root's tensor on all ranks, as a new tensor; shape and type must be the same everywhere. Differentiable."""
    if tensor.requires_grad:
        return gradients.Broadcast.apply(tensor, root_rank, name, process_set)
    return wait(async_ops.broadcast_async(tensor, root_rank, name, process_set))


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: Any = global_process_set) -> torch.Tensor:
    """``broadcast`` in place; returns the tensor itself. Not differentiable."""
    return wait(async_ops.broadcast_async_(tensor, root_rank, name, process_set))


def alltoall(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
             process_set: Any = global_process_set) -> Any:
    """Sends rows to every rank and receives rows from every rank. Differentiable.

    Args:
        tensor: (n, …), the rows for rank 0 first.
        splits: how many rows go to each rank, Σ = n; None: equally many.

    Returns:
        The rows received, in order of rank; with ``splits`` also an int32 tensor of how many came from each.
    """
    if tensor.requires_grad:
        shares = async_ops.splits_of(tensor, splits, process_set)
        output, received = gradients.Alltoall.apply(tensor, shares, name, process_set)
        return output if splits is None else (output, received)
    return wait(async_ops.alltoall_async(tensor, splits, name, process_set))


def reducescatter(tensor: torch.Tensor, name: str | None = None, compression: type = Compression.none,
                  op: ReduceOp = Average, process_set: Any = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Combines the ranks' tensors (n, …) of one shape and type and gives each rank its part of the rows: the first
    ranks have one more where n does not come out even. Differentiable."""
    if tensor.requires_grad:
        return gradients.Reducescatter.apply(name, compression, choose_op(None, op), process_set, prescale_factor,
                                             postscale_factor, tensor)[0]
    small, context = compression.compress(tensor)
    handle = async_ops.reducescatter_async(small, name, op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(wait(handle), context)


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: str | None = None, op: ReduceOp = Average,
                          process_set: Any = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """``reducescatter`` of several tensors at once. Differentiable."""
    if any(tensor.requires_grad for tensor in tensors):
        return list(gradients.Reducescatter.apply(name, Compression.none, choose_op(None, op), process_set,
                                                  prescale_factor, postscale_factor, *tensors))
    return wait(async_ops.grouped_reducescatter_async(tensors, name, op, process_set, prescale_factor,
                                                      postscale_factor))
