"""Dropout whose masks depend on the sample alone."""

from __future__ import annotations

import torch
from torch import nn


class Dropout(nn.Module):
    """As ``torch.nn.Dropout``, but in a step of Bimetal its masks are a function of (seed, epoch, sample, layer): the
    same whichever rank computes a sample, in whichever micro-batch, on any device, and when it is computed again.

    Takes tensors whose first dimension is the samples. Outside of Bimetal's step it is torch's dropout.

    Args:
        p: the share of elements that become 0; the others are divided by 1 - p.
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"a dropout of {p} is not at least 0 and less than 1")
        self.p = p
        self.layer = 0  # its number in the model, given by bimetal.task.units

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x
        program = _program_in_a_step()
        if program is None:
            return nn.functional.dropout(x, self.p)
        rows = x.flatten(2) if x.dim() > 4 else x.reshape(x.shape[0], 1, -1) if x.dim() < 3 else x
        return program.dropout_by_sample(rows, self.p, self.layer).view_as(x)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _program_in_a_step():
    """The program of this process, if it computes samples just now."""
    try:
        from bimetal import _program
    except ImportError:
        return None
    return _program if _program.in_a_step() else None
