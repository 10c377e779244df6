"""The object that a user's function returns: a model, data, and a loss, with nothing distributed in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bimetal import _C, _torch_check


@dataclasses.dataclass(frozen=True)
class Metric:
    """A figure by which people judge a model beside its loss: the mean of ``sum`` over the samples' weight.

    Attributes:
        sum: from (outputs, batch) to the sum over the batch, one number; None: the loss itself.
        of_mean: from that mean to the metric; None: it is the mean. ``Metric(of_mean=math.exp)`` is a perplexity.
    """

    sum: Callable[[Any, Any], torch.Tensor] | None = None
    of_mean: Callable[[float], float] | None = None


@dataclasses.dataclass
class Task:
    """A task to be learnt.

    Attributes:
        make_model: makes the model on the CPU in float32. Its random numbers from torch's generator are the same on all
            ranks. Parameters that need no gradient are kept as they are.
        training: the samples that are learnt from, alike on all ranks: a torch ``TensorDataset``, or anything with
            ``__len__`` and ``__getitem__`` whose items are tuples of tensors and numbers. Called by two threads.
        loss_sum: from (outputs, batch) to the sum (not the mean) over the batch's targets, one number. ``outputs`` is
            what the model returned, ``batch`` the tuple of tensors; both are on the computing device.
        evaluation: the data that the model is judged by; None: there is none.
        metrics: by name (lower case with underscores): a :class:`Metric`, or its ``sum`` alone.
        inputs: from a batch to the model's inputs; None: all but the last tensor.
        collate: from a list of items to a batch; None: torch's default_collate.
        weights: how much each training sample counts in the mean that is minimised: 1, or its number of targets
            (tokens). A data set may have them as an attribute ``weights`` of its own.
        units: from the model to its parts in order, each called with what the one before returned: where ZeRO gathers
            parameters and recomputation begins anew. None: the children of an ``nn.Sequential``, else the whole model
            is one unit.
        make_optimizer: from the model to an optimizer of ``torch.optim``, or to one and its scheduler, which is stepped
            after each optimizer step; None: the job's ``train.optimizer`` and ``schedule``. Gradients are those of the
            whole batch, clipped as the job says. It goes with all-reduce (not with ``zero`` and servers).
        counts: the unit that weights count, for people to read: "samples", "tokens".
    """

    make_model: Callable[[], nn.Module]
    training: Any
    loss_sum: Callable[[Any, Any], torch.Tensor]
    evaluation: Any = None
    metrics: Mapping[str, Metric | Callable[[Any, Any], torch.Tensor]] = dataclasses.field(default_factory=dict)
    inputs: Callable[[Any], Any] | None = None
    collate: Callable[[list], Any] | None = None
    weights: Sequence[int] | torch.Tensor | None = None
    units: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    make_optimizer: Callable[[nn.Module], Any] | None = None
    counts: str = "samples"


class Dropout(nn.Module):
    """As ``torch.nn.Dropout``, but in a step of Bimetal its masks are a function of (seed, epoch, sample, layer): the
    same on any rank, in any micro-batch, on any device, and when a sample is computed again.

    Takes tensors whose first dimension is the samples. Outside of Bimetal's step it is torch's dropout.

    Args:
        p: the share of elements that become 0; the others are divided by 1 - p.
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"a dropout of {p} is not at least 0 and less than 1")
        self.p = p
        self.layer = 0  # its number in the model, given by bimetal.task.hosted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x
        if not _in_a_step():
            return nn.functional.dropout(x, self.p)
        rows = x.flatten(2) if x.dim() > 4 else x.reshape(x.shape[0], 1, -1) if x.dim() < 3 else x
        return _C.dropout_by_sample(rows, self.p, self.layer).view_as(x)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _in_a_step() -> bool:
    """Whether the program of this process computes samples just now."""
    return _torch_check.fits() and _C.in_a_step()
