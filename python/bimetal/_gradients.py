"""Norms of gradients that no rank has all of."""

from __future__ import annotations

import torch
import torch.distributed as dist


def clip_over_ranks(gradients: list[torch.Tensor], counted: list[torch.Tensor], max_norm: float,
                    group: dist.ProcessGroup | None) -> torch.Tensor:
    """As ``torch.nn.utils.clip_grad_norm_``, of the gradients of all ranks. Collective.

    Args:
        gradients: this rank's.
        counted: those of them that no other rank counts.

    Returns: the norm before clipping, a float64 scalar and the same on every rank.
    """
    square = torch.zeros(1, dtype=torch.float64)
    if counted:
        square += torch.stack([part.double().cpu() for part in torch._foreach_norm(counted)]).square().sum()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()[0]
    part = float(max_norm / (norm + 1e-6))
    if not part >= 1 and gradients:  # nor where the norm is NaN, which torch gives to all of them
        torch._foreach_mul_(gradients, part)
    return norm
