"""What a user's function gives back: a model, data, and a loss, with nothing distributed in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn


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
    """What is learnt.

    Attributes:
        make_model: makes the model on the CPU in float32. What it draws from torch's generator is alike on all
            ranks. Parameters that need no gradient are kept as they are.
        training: the samples that are learnt from, alike on all ranks: a torch ``TensorDataset``, or anything with
            ``__len__`` and ``__getitem__`` whose items are tuples of tensors and numbers. Called by two threads.
        loss_sum: from (outputs, batch) to the sum (not the mean) over the batch's targets, one number. ``outputs`` is
            what the model returned, ``batch`` the tuple of tensors; both are on the computing device.
        evaluation: what the model is judged by; None: it is not.
        metrics: by name (lower case with underscores): a :class:`Metric`, or its ``sum`` alone.
        inputs: from a batch to what the model takes; None: all but the last tensor.
        collate: from a list of items to a batch; None: torch's default_collate.
        weights: how much each training sample counts in the mean that is minimised: 1, or its number of targets
            (tokens). A data set may have them as an attribute ``weights`` of its own.
        units: from the model to its parts in order, each called with what the one before returned: where ZeRO gathers
            parameters and recomputation begins anew. None: the children of an ``nn.Sequential``, else the whole model
            is one unit.
        counts: what weights count, for people to read: "samples", "tokens".
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
    counts: str = "samples"
