"""Batch normalisation over the samples of all ranks."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from bimetal.horovod.core import world
from bimetal.horovod.core.request import Sum
from bimetal.horovod.torch.ops import allreduce


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
        # In float32 at least: sums over many samples of a half type lose what they are to tell.
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
