"""Collectives on PyTorch tensors that do not wait, and their handles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bimetal._errors import Error
from bimetal.horovod.core.request import Average, Handle, ReduceOp, Sum
from bimetal.horovod.core.submit import choose_op, global_process_set, or_all, submit, wait

__all__ = ["allgather_async", "allreduce_async", "allreduce_async_", "alltoall_async", "broadcast_async",
           "broadcast_async_", "grouped_allgather_async", "grouped_allreduce_async", "grouped_allreduce_async_",
           "grouped_reducescatter_async", "poll", "reducescatter_async", "sparse_allreduce_async", "synchronize"]


def synchronize(handle: Handle | Callable[[], Any]) -> Any:
    """Waits for an asynchronous operation and returns its result. Raises bimetal.Error."""
    return handle() if callable(handle) else wait(handle)


def poll(handle: Handle) -> bool:
    """Whether synchronize() would return at once."""
    return handle.done()


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: Any = global_process_set) -> Handle:
    """``allreduce`` without waiting: a handle, whose result is a new tensor."""
    return allreduce_async_(tensor.detach().clone(), average, name, op, prescale_factor, postscale_factor, process_set)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: Any = global_process_set) -> Handle:
    """``allreduce_`` without waiting; the tensor is not to be touched until the handle is done."""
    return submit("allreduce", name, [tensor], lambda _: tensor, process_set, op=choose_op(average, op),
                  prescale=prescale_factor, postscale=postscale_factor)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                            op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: Any = global_process_set) -> Handle:
    """``grouped_allreduce`` without waiting."""
    return grouped_allreduce_async_([tensor.detach().clone() for tensor in tensors], average, name, op,
                                    prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                             op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: Any = global_process_set) -> Handle:
    """``grouped_allreduce_`` without waiting."""
    kept = list(tensors)
    return submit("allreduce", name, kept, lambda _: kept, process_set, op=choose_op(average, op),
                  prescale=prescale_factor, postscale=postscale_factor)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set) -> Handle:
    """``allgather`` without waiting; the tensor is not to be changed until the handle is done."""
    return submit("allgather", name, [tensor], lambda results: results[0], process_set)


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: Any = global_process_set) -> Handle:
    """``grouped_allgather`` without waiting."""
    return submit("allgather", name, list(tensors), lambda results: results, process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: Any = global_process_set) -> Handle:
    """``broadcast`` without waiting."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: Any = global_process_set) -> Handle:
    """``broadcast_`` without waiting; the tensor is not to be touched until the handle is done."""
    return submit("broadcast", name, [tensor], lambda _: tensor, process_set, root=root_rank)


def splits_of(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None,
              process_set: Any = global_process_set) -> tuple[int, ...]:
    if splits is not None:
        return tuple(splits.tolist() if isinstance(splits, torch.Tensor) else map(int, splits))
    size = or_all(process_set).size()
    rows = tensor.shape[0] if tensor.dim() else 0
    if rows % size:
        raise ValueError(f"alltoall without splits needs a number of rows that {size} ranks divide; there are {rows}")
    return (rows // size,) * size


def alltoall_async(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int] | None = None, name: str | None = None,
                   process_set: Any = global_process_set) -> Handle:
    """``alltoall`` without waiting; the tensor is not to be changed until the handle is done."""
    return submit("alltoall", name, [tensor],
                  lambda results: results[0] if splits is None else (results[0], results[1]),
                  process_set, splits=splits_of(tensor, splits, process_set))


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: ReduceOp = Average,
                        process_set: Any = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """``reducescatter`` without waiting; the tensor is not to be changed until the handle is done."""
    return submit("reducescatter", name, [tensor], lambda results: results[0], process_set, op=choose_op(None, op),
                  prescale=prescale_factor, postscale=postscale_factor)


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: str | None = None, op: ReduceOp = Average,
                                process_set: Any = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """``grouped_reducescatter`` without waiting."""
    return submit("reducescatter", name, list(tensors), lambda results: results, process_set, op=choose_op(None, op),
                  prescale=prescale_factor, postscale=postscale_factor)


def sparse_allreduce_async(tensor: torch.Tensor, name: str | None, op: ReduceOp,
                           process_set: Any = global_process_set) -> Callable[[], torch.Tensor]:
    """The sum or average of the ranks' sparse COO tensors of one shape and type.

    Returns:
        A function that waits for it, as Horovod's does; ``synchronize()`` takes it, too.
    """
    if op not in (Average, Sum):
        raise Error("sparse tensors can be averaged or summed; pass tensor.to_dense() for other ops", "unsupported")
    rows = tensor.coalesce()
    handle = submit("allgather", name, [rows.indices().t().contiguous(), rows.values()], lambda results: results,
                    process_set)

    def finish() -> torch.Tensor:
        indices, values = wait(handle)
        if op == Average:
            values = values / or_all(process_set).size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
    return finish
