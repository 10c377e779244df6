"""Collectives on PyTorch tensors that wait for their result, and equal beginnings; gradients.py has the differentiable
ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from bimetal.horovod.core import world
from bimetal.horovod.core.compression import Compression
from bimetal.horovod.core.objects import broadcast_object
from bimetal.horovod.core.request import Average, ReduceOp, Sum
from bimetal.horovod.core.submit import choose_op, global_process_set, submit, wait
from bimetal.horovod.torch import async_ops, gradients

__all__ = ["allgather", "allreduce", "allreduce_", "alltoall", "broadcast", "broadcast_", "grouped_allgather",
           "grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "reducescatter"]


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
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor, postscale_factor,
                             process_set)[0]


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: Any = global_process_set) -> torch.Tensor:
    """``allreduce`` in place; returns the tensor itself. Not differentiable."""
    return wait(async_ops.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                      compression: type = Compression.none, op: ReduceOp | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: Any = global_process_set) -> list[torch.Tensor]:
    """``allreduce`` of several tensors as one exchange; none is there before all are. Differentiable."""
    return list(gradients.Allreduce.apply(name, compression, choose_op(average, op), prescale_factor, postscale_factor,
                                          process_set, *tensors))


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
    return gradients.Allgather.apply(name, process_set, tensor)[0]


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: Any = global_process_set) -> list[torch.Tensor]:
    """``allgather`` of several tensors at once. Differentiable."""
    return list(gradients.Allgather.apply(name, process_set, *tensors))


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: Any = global_process_set) -> torch.Tensor:
    """The root's tensor on all ranks, as a new tensor; shape and type must be the same everywhere. Differentiable."""
    return gradients.Broadcast.apply(tensor, root_rank, name, process_set)


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
    shares = async_ops.splits_of(tensor, splits, process_set)
    output, received = gradients.Alltoall.apply(tensor, shares, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(tensor: torch.Tensor, name: str | None = None, compression: type = Compression.none,
                  op: ReduceOp = Average, process_set: Any = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Combines the ranks' tensors (n, …) of one shape and type and gives each rank its part of the rows: the first
    ranks have one more where n does not come out even. Differentiable."""
    return gradients.Reducescatter.apply(name, compression, choose_op(None, op), process_set, prescale_factor,
                                         postscale_factor, tensor)[0]


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: str | None = None, op: ReduceOp = Average,
                          process_set: Any = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """``reducescatter`` of several tensors at once. Differentiable."""
    return list(gradients.Reducescatter.apply(name, Compression.none, choose_op(None, op), process_set, prescale_factor,
                                              postscale_factor, *tensors))


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int,
                         process_set: Any = None) -> None:
    """Overwrites tensors with those of the root.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``; what is no tensor in
            them stays as it is. The same names, shapes and types on all ranks.
        root_rank: the rank that has the right ones.
    """
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"params are a state_dict, named_parameters() or parameters(), not {type(params).__name__}")
    values = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [value[1] if isinstance(value, tuple) else value for value in values]
    tensors = [tensor.detach() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    wait(submit("broadcast", "parameters", tensors, lambda _: None, process_set, root=root_rank))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Gives all ranks the root's optimizer state: learning rates and other options, momenta, counts of steps.

    Args:
        optimizer: the same kind over the same parameters on all ranks; it may be new on some and used on others.
        model: for Horovod's signature; not needed.
    """
    del model
    state = broadcast_object(optimizer.state_dict(), root_rank, name="optimizer_state")
    optimizer.load_state_dict(state)


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm1d`` to ``3d``, with the statistics of the ranks' joined batch while it trains.

    Each sample counts once, however unlike the ranks' batches are; a rank without samples takes part with an empty
    tensor (0, C, …). All ranks must come to their layers in one order. The arguments are those of torch's classes.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(N, C, …) to the same shape. Raises bimetal.Error as allreduce does."""
        self._check_input_dim(input)
        if not self.training or world.current().size == 1:
            return super().forward(input)
        over = [dim for dim in range(input.dim()) if dim != 1]
        across = (1, -1, *(1 for _ in over[1:]))
        # In float32 at least: sums over many samples in a half type lose too many digits.
        x = input if input.dtype == torch.float64 else input.float()
        own = torch.cat([x.sum(over), x.new_full((1,), x.numel() / x.shape[1])])
        totals = allreduce(own, op=Sum)
        count = totals[-1].detach()
        mean = totals[:-1] / count
        centred = x - mean.view(across)
        variance = allreduce((centred * centred).sum(over), op=Sum) / count
        self._remember(mean.detach(), variance.detach(), count)
        result = centred * torch.rsqrt(variance + self.eps).view(across)
        if self.affine:
            result = result * self.weight.view(across) + self.bias.view(across)
        return result.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
