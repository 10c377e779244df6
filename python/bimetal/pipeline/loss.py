"""The loss of a batch: sums over micro-batches, and the number that divides them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal.pipeline.passes import _map

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


def mark_in_graph() -> int:
    """Adds a mark behind this thread's computations so far with gradients."""
    return (torch.zeros((), requires_grad=True) + 0).grad_fn._sequence_nr()


def require_of_outputs(loss: torch.Tensor, mark: int) -> None:
    """bimetal.Error ``unsupported`` if the computation behind the mark, which is the loss, uses parameters by
    itself."""
    waiting, known = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            raise error("loss_sum uses parameters beside what the module returns (as a penalty does), of which a stage has but its own: "
                        "let it use its two arguments alone, and decay weights by the optimizer, or add λ·p to each parameter's "
                        "gradient after forward_backward()", "unsupported")
        if node._sequence_nr() > mark:
            waiting.extend(following for following, _ in node.next_functions)


class Batch:
    """The arguments of one call of the module, and how they are cut into micro-batches.

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
        return _C.micro_batch_sizes(self.samples, count)

    def digest(self) -> int:
        """A digest that tells batches apart."""
        return digest_of({"args": self.args, "kwargs": self.kwargs, "targets": self.targets})

    def pieces(self, count: int) -> list[tuple[tuple, dict[str, Any], Any]]:
        """Tensors with as many rows as there are samples are cut, in tuples, lists and dicts, too; everything else goes to
        each."""
        ends = [0, *accumulate(self.sizes(count))]

        def part(value: Any, i: int) -> Any:
            return _map(value, lambda tensor: tensor[ends[i]:ends[i + 1]]
                        if tensor.dim() > 0 and len(tensor) == self.samples else tensor)

        return [(part(self.args, i), part(self.kwargs, i), part(self.targets, i)) for i in range(count)]


def digest_of(given: Any) -> int:
    """A digest of shapes, and of the first elements of tensors of whole numbers: enough to tell batches of a shuffled
    data set apart."""
    crc = 0
    for name, value in _tensors("", given):
        begin = [] if value.is_floating_point() else value.detach().reshape(-1)[:_TOLD_APART].tolist()
        crc = zlib.crc32(repr((name, tuple(value.shape), begin)).encode(), crc)
    return crc


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Those in a value, by where they stand in it."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(f"{name}.{key}", value[key])
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from _tensors(f"{name}.{place}", item)
