"""What a batch is learnt by: sums over micro-batches, and what divides them."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn

from bimetal._errors import error

_IGNORED = -100
_TOLD_APART = 256  # elements


def causal_loss_sum(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum that Hugging Face's causal models divide by their number of labels; in float32 at least."""
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED,
                                       reduction="sum")


def causal_weight(labels: torch.Tensor) -> int:
    """How many positions have a label to predict."""
    return int((labels[:, 1:] != _IGNORED).sum())


class Batch:
    """What one call of the module is given, and how it is cut into micro-batches.

    Attributes: args, kwargs, targets; samples: the length of the first tensor.
    """

    def __init__(self, args: tuple, kwargs: dict[str, Any], targets: Any):
        self.args, self.kwargs, self.targets = args, kwargs, targets
        first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.dim() > 0),
                     None)
        if first is None:
            raise error("a batch needs a tensor whose first dimension is its samples", "invalid_argument")
        self.samples = len(first)

    def sizes(self, count: int) -> list[int]:
        """Samples of each of `count` micro-batches: as even as can be."""
        return [self.samples * (i + 1) // count - self.samples * i // count for i in range(count)]

    def digest(self) -> int:
        """Of shapes, and of where numbers that are no fractions begin: enough to tell batches of a shuffled data set apart."""
        crc = 0
        for name, value in (*enumerate(self.args), *sorted(self.kwargs.items()), ("targets", self.targets)):
            if isinstance(value, torch.Tensor):
                begin = [] if value.is_floating_point() else value.detach().reshape(-1)[:_TOLD_APART].tolist()
                crc = zlib.crc32(repr((name, tuple(value.shape), begin)).encode(), crc)
        return crc

    def pieces(self, count: int) -> list[tuple[tuple, dict[str, Any], Any]]:
        """Tensors with as many rows as there are samples are cut; everything else goes to each."""
        ends = [self.samples * i // count for i in range(count + 1)]

        def part(value: Any, i: int) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == self.samples:
                return value[ends[i]:ends[i + 1]]
            return value

        return [(tuple(part(value, i) for value in self.args), {key: part(value, i) for key, value in self.kwargs.items()},
                 part(self.targets, i)) for i in range(count)]
