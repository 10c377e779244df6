"""Data sets of Python as the program reads them: batches of samples by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from bimetal.task.units import as_tuple


class HostedDataset:
    """A data set as src/bimetal/python_host reads it."""

    def __init__(self, dataset: Any, collate: Callable[[list], Any] | None, weights: Any = None):
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"a data set needs __len__ and __getitem__, since every sample comes once an epoch; "
                            f"{type(dataset).__name__} lacks them")
        self._dataset = dataset
        self._collate = collate
        self.size = len(dataset)
        if self.size == 0:
            raise ValueError("a data set is empty")
        self.weights = _weights(weights if weights is not None else getattr(dataset, "weights", None), self.size)

    def batch(self, samples: list[int]) -> tuple:
        """Their tensors; the first dimension of each is the samples."""
        if self._collate is None and isinstance(self._dataset, TensorDataset):
            return tuple(self._dataset[torch.tensor(samples, dtype=torch.int64)])
        if not samples:  # of a rank that has none: the first one tells the other dimensions
            return tuple(tensor[:0] for tensor in self.batch([0]))
        batch = (self._collate or default_collate)([self._dataset[sample] for sample in samples])
        tensors = as_tuple(batch, "a batch")
        for tensor in tensors:
            if tensor.dim() == 0 or tensor.shape[0] != len(samples):
                raise ValueError(f"a batch of {len(samples)} samples has a tensor of shape {tuple(tensor.shape)}: the "
                                 f"first dimension has to be the samples")
        return tensors


def _weights(weights: Any, size: int) -> list[int]:
    """As a list; empty where all weigh 1."""
    if weights is None:
        return []
    listed = [int(weight) for weight in weights]
    if len(listed) != size:
        raise ValueError(f"there are {len(listed)} weights for {size} samples")
    if min(listed) < 1:
        raise ValueError(f"sample {listed.index(min(listed))} weighs {min(listed)}: leave it out, or give at least 1")
    return listed
