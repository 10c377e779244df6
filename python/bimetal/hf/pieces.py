"""A rank's part of a batch in micro-batches, each of which is collated, and so padded, by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

_MASK = "attention_mask"


class Pieces(dict[str, torch.Tensor]):
    """What the Trainer takes for one batch. As a mapping it has all tokens, and their mask, flat: what counting them takes.

    Attributes:
        parts: what the collate function made of each micro-batch.
    """

    def __init__(self, parts: list[dict[str, Any]], tokens: str) -> None:
        found = {name: [part.get(name) for part in parts] for name in (tokens, _MASK)}
        if _are_tensors(found[tokens]) and any(mask is not None for mask in found[_MASK]):  # a part without one is all tokens
            found[_MASK] = [torch.ones_like(part) if mask is None else mask for part, mask in zip(*found.values(), strict=True)]
        super().__init__({name: torch.cat([value.flatten() for value in values]) for name, values in found.items()
                          if _are_tensors(values)})
        self.parts = parts

    def pin_memory(self) -> Pieces:
        """DataLoader asks for it; what it knows of mappings would leave out the parts."""
        for tensors in (self, *self.parts):
            tensors.update(pinned({**tensors}))
        return self


def _are_tensors(values: list[Any]) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


class InPieces:
    """A collate function that gives another one at most so many samples at a time, sequences of like lengths together.

    Args:
        collate: makes a dictionary of samples.
        most: samples in a micro-batch, at least 1. There are as few as that allows, of sizes as alike as can be.
        tokens: the name of the sequences in samples, by whose lengths they are put together, the longest first: what does not
            fit in memory is found out before the rest is computed.
    """

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]], most: int, tokens: str = "input_ids") -> None:
        self._collate, self._most, self._tokens = collate, most, tokens

    def __call__(self, samples: Sequence[Any]) -> Pieces:
        longest_first = sorted(samples, key=self._length, reverse=True)
        count, rows = -(-len(samples) // self._most), len(samples)
        cuts = [rows * number // count for number in range(count + 1)]
        return Pieces([self._collate(longest_first[begin:end]) for begin, end in zip(cuts, cuts[1:], strict=False)], self._tokens)

    def _length(self, sample: Any) -> int:
        sequence = sample.get(self._tokens) if isinstance(sample, Mapping) else None
        return len(sequence) if sequence is not None else 0
