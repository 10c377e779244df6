"""Gradients of the collectives: autograd functions over the operations that do not wait, each for any number of
tensors that travel as one group. Gradients are those that Horovod defines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bimetal.horovod.core import world
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.core.submit import or_all, wait
from bimetal.horovod.torch import async_ops

Tensors = tuple[torch.Tensor, ...]


def _require_linear(op: ReduceOp, what: str) -> None:
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise ValueError(f"{what} with op {ReduceOp(op).name} has no gradient; pass tensor.detach()")


def _average(tensors: Sequence[torch.Tensor], process_set: Any) -> list[torch.Tensor]:
    return wait(async_ops.grouped_allreduce_async(tensors, op=ReduceOp.Average, process_set=process_set))


class Allreduce(torch.autograd.Function):
    """The gradient of a sum or average over ranks is the same combination of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, name: str | None, compression: type, op: ReduceOp, prescale: float, postscale: float,
                process_set: Any, *tensors: torch.Tensor) -> Tensors:
        ctx.compression, ctx.op = compression, op
        ctx.more = (prescale, postscale, process_set)
        return Allreduce.reduce(ctx, tensors, name)

    @staticmethod
    def reduce(ctx: Any, tensors: Sequence[torch.Tensor], name: str | None) -> Tensors:
        pairs = [ctx.compression.compress(tensor.detach()) for tensor in tensors]
        handle = async_ops.grouped_allreduce_async([small for small, _ in pairs], None, name, ctx.op, *ctx.more)
        return tuple(ctx.compression.decompress(result, context)
                     for result, (_, context) in zip(wait(handle), pairs, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        _require_linear(ctx.op, "allreduce")
        return (None,) * 6 + Allreduce.reduce(ctx, gradients, None)


class Allgather(torch.autograd.Function):
    """The gradient is this rank's rows of the gradients' average."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: Any, *tensors: torch.Tensor) -> Tensors:
        handle = async_ops.grouped_allgather_async([tensor.detach() for tensor in tensors], name, process_set)
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in tensors], process_set  # each has rows, or that has raised
        return tuple(wait(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        reduced = _average(gradients, ctx.process_set)
        everyones = wait(async_ops.allgather_async(torch.tensor([ctx.rows]), process_set=ctx.process_set))
        begins = everyones[:or_all(ctx.process_set).rank()].sum(0).tolist()
        return None, None, *(whole[begin:begin + rows]
                             for whole, begin, rows in zip(reduced, begins, ctx.rows, strict=True))


class Broadcast(torch.autograd.Function):
    """The gradient is, on the root, the gradients' average; elsewhere zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: Any) -> torch.Tensor:
        ctx.root, ctx.process_set = root, process_set
        return wait(async_ops.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        reduced, = _average([gradient], ctx.process_set)
        return reduced if world.current().rank == ctx.root else torch.zeros_like(reduced), None, None, None


class Alltoall(torch.autograd.Function):
    """Gradients travel back the way that the rows came."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: tuple[int, ...], name: str | None, process_set: Any) -> tuple:
        output, received = wait(async_ops.alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple:
        return wait(async_ops.alltoall_async(gradient, ctx.received, None, ctx.process_set))[0], None, None, None


class Reducescatter(torch.autograd.Function):
    """The gradient is every rank's part, gathered: of an average as it is, of a sum times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, name: str | None, compression: type, op: ReduceOp, process_set: Any, prescale: float,
                postscale: float, *tensors: torch.Tensor) -> Tensors:
        ctx.op, ctx.process_set = op, process_set
        ctx.factor = prescale * postscale * (or_all(process_set).size() if op == ReduceOp.Sum else 1)
        pairs = [compression.compress(tensor.detach()) for tensor in tensors]
        handle = async_ops.grouped_reducescatter_async([small for small, _ in pairs], name, op, process_set, prescale,
                                                       postscale)
        return tuple(compression.decompress(result, context)
                     for result, (_, context) in zip(wait(handle), pairs, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        _require_linear(ctx.op, "reducescatter")
        gathered = wait(async_ops.grouped_allgather_async([gradient.contiguous() for gradient in gradients],
                                                          process_set=ctx.process_set))
        return (None,) * 6 + tuple(whole * ctx.factor for whole in gathered)
