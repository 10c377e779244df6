"""Gradients of the collectives: autograd functions over the operations that do not wait."""

from __future__ import annotations

from typing import Any

import torch

from bimetal.horovod.core import world
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.core.submit import wait
from bimetal.horovod.torch import async_ops


def _require_linear(op: ReduceOp, what: str) -> None:
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise ValueError(f"{what} with op {ReduceOp(op).name} has no gradient; pass tensor.detach()")


def _average(tensor: torch.Tensor) -> torch.Tensor:
    return wait(async_ops.allreduce_async(tensor, op=ReduceOp.Average))


class Allreduce(torch.autograd.Function):
    """The gradient of a sum or average over ranks is the same combination of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, compression: type, op: ReduceOp, prescale: float,
                postscale: float, process_set: Any) -> torch.Tensor:
        ctx.compression, ctx.op = compression, op
        ctx.more = (prescale, postscale, process_set)
        return Allreduce.reduce(ctx, tensor, name)

    @staticmethod
    def reduce(ctx: Any, tensor: torch.Tensor, name: str | None) -> torch.Tensor:
        small, context = ctx.compression.compress(tensor.detach())
        return ctx.compression.decompress(wait(async_ops.allreduce_async(small, None, name, ctx.op, *ctx.more)),
                                          context)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        _require_linear(ctx.op, "allreduce")
        return Allreduce.reduce(ctx, gradient, None), None, None, None, None, None, None


class Allgather(torch.autograd.Function):
    """The gradient is this rank's rows of the gradients' average, as Horovod defines it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: Any) -> torch.Tensor:
        ctx.rows = tensor.shape[0]
        return wait(async_ops.allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        reduced = _average(gradient)
        rows = wait(async_ops.allgather_async(torch.tensor([ctx.rows]))).tolist()
        begin = sum(rows[:world.current().rank])
        return reduced[begin:begin + ctx.rows], None, None


class Broadcast(torch.autograd.Function):
    """The gradient is, on the root, the gradients' average, as Horovod defines it; elsewhere zero."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: Any) -> torch.Tensor:
        ctx.root = root
        return wait(async_ops.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        reduced = _average(gradient)
        return reduced if world.current().rank == ctx.root else torch.zeros_like(reduced), None, None, None


class Alltoall(torch.autograd.Function):
    """Gradients travel back the way that the rows came."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: tuple[int, ...], name: str | None, process_set: Any) -> tuple:
        output, received = wait(async_ops.alltoall_async(tensor, splits, name, process_set))
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple:
        return wait(async_ops.alltoall_async(gradient, ctx.received))[0], None, None, None


class Reducescatter(torch.autograd.Function):
    """The gradient is every rank's part, gathered and scaled as the rows were."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, compression: type, op: ReduceOp, process_set: Any,
                prescale: float, postscale: float) -> torch.Tensor:
        ctx.op = op
        ctx.factor = prescale * postscale / (world.current().size if op == ReduceOp.Average else 1)
        small, context = compression.compress(tensor.detach())
        handle = async_ops.reducescatter_async(small, name, op, process_set, prescale, postscale)
        return compression.decompress(wait(handle), context)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        _require_linear(ctx.op, "reducescatter")
        return wait(async_ops.allgather_async(gradient)) * ctx.factor, None, None, None, None, None, None
