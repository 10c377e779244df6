"""Finds out, by computing it, what a Trainer's loss is the mean of."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

_NEAR = 1e-4  # relative, for values computed in float32 or better
_NEAR_IN_HALF = 2e-2
_TRIED = 256  # samples at most, among which some with labels are looked for
_ADVICE = "Give the Trainer a compute_loss_func(outputs, labels, num_items_in_batch) that divides all of the loss by this number"

# For a batch: the number of things that a loss which is a mean averages over.
Weight = Callable[[Mapping[str, Any]], int]


def labels_in(batch: Mapping[str, Any]) -> int:
    return int((batch["labels"] != -100).sum())


def shifted_labels_in(batch: Mapping[str, Any]) -> int:
    return int((batch["labels"][..., 1:] != -100).sum())


def samples_in(batch: Mapping[str, Any]) -> int:
    return len(next(value for value in batch.values() if isinstance(value, torch.Tensor) and value.dim() > 0))


def find_loss_kind(model: torch.nn.Module, batch: Mapping[str, Any], loss_of: Callable[[Mapping[str, Any], Any], torch.Tensor],
                   divides: bool) -> Weight | None:
    """None for a loss that is divided by the number it is given; else what the weight of a mean is.

    The loss is computed without dropout, of the batch with two divisors, then of its two halves.

    Args:
        model: of this rank; its mode is restored.
        batch: a few samples.
        loss_of: the loss of a batch and of what it is to be divided by.
        divides: whether the loss may be divided by that number.

    Raises:
        ValueError: for a loss that is neither, so that no weight makes the ranks' gradients those of one process.
    """
    rows = samples_in(batch)
    halves = _rows(batch, 0, rows - rows // 2, rows), _rows(batch, rows - rows // 2, rows, rows)
    if rows > 1 and _are_of_tokens(batch):  # the halves have unlike numbers of labels, so that means over unlike things differ
        halves[0]["labels"] = _every_second_masked(halves[0]["labels"])
        batch = {**batch, "labels": torch.cat([half["labels"] for half in halves])}
    items = max(_possible(batch)[0](batch), 1)
    near = _NEAR_IN_HALF if any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters()) else _NEAR
    with _in_evaluation(model), torch.enable_grad():  # a loss may be of gradients
        whole = float(loss_of(batch, torch.tensor(items, device=_device_of(batch))))
        if not math.isfinite(whole) or whole == 0:
            raise ValueError(f"the loss of the dataset's first samples is {whole}, so that what it is the mean of does not show. {_ADVICE}")
        if divides:
            halved = float(loss_of(batch, torch.tensor(2 * items, device=_device_of(batch))))
            if _error(2 * halved, whole) <= near:
                return None
            if _error(halved, whole) > near:
                raise ValueError("a part of this loss is divided by num_items_in_batch and a part is not, so that no weights make the "
                                 f"ranks' gradients those of one process. {_ADVICE}")
        if rows < 2:
            raise ValueError("this loss is not divided by num_items_in_batch, and the collated samples are one row, so that what it is "
                             f"the mean of does not show. {_ADVICE}")
        parts = [float(loss_of(half, None)) for half in halves]

    fitting: dict[float, Weight] = {}  # by the first half's proportion: those of the same are one
    for weight in _possible(batch):
        weights = [weight(half) for half in halves]
        counted = sum(number * part for number, part in zip(weights, parts, strict=True) if number)  # else it may be no number
        if sum(weights) and _error(counted / sum(weights), whole) <= near:
            fitting.setdefault(weights[0] / sum(weights), weight)
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if fitting:
        raise ValueError("this loss is not divided by num_items_in_batch, and whether it is a mean over labels or over samples does not "
                         f"show, as all of them have the same loss, or it is computed in few bits. {_ADVICE}")
    raise ValueError("this loss is not divided by num_items_in_batch, and it is no mean over samples or labels either: unequal ranks "
                     f"cannot train with it. {_ADVICE}")


def on_all_ranks(find: Callable[[], Weight | None]) -> Weight | None:
    """The common finding of all ranks. Collective. Raises ValueError on all of them if one could not find it, or if
    they differ."""
    error, weight = None, None
    try:
        weight = find()
    except Exception as raised:  # of any kind: the others wait for an answer
        error = raised
    everyone: list[Any] = [(str(error) if error else None, weight.__name__ if weight else "num_items_in_batch")]
    if dist.is_initialized():
        mine = everyone[0]
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
    if error is not None:
        raise error
    for rank, (text, _) in enumerate(everyone):
        if text:
            raise ValueError(f"rank {rank} could not find out how its loss is to be weighed: {text}")
    if len({name for _, name in everyone}) > 1:
        found = ", ".join(f"{name} on rank {rank}" for rank, (_, name) in enumerate(everyone))
        raise ValueError(f"the ranks' losses are means of unlike things ({found}): they need the same samples and the same loss")
    return weight


def with_some_label(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of which nothing counts, with labels that can be computed: a mean over none would be no number, times 0 as well."""
    labels = batch.get("labels")
    return {**batch, "labels": labels.clamp(min=0)} if isinstance(labels, torch.Tensor) else {**batch}


def samples_to_try(dataset: Any, collate: Callable[[list[Any]], Mapping[str, Any]]) -> Mapping[str, Any]:
    """A few of its first samples on which the loss can be tried."""
    size = len(dataset)
    for begin in range(0, min(size, _TRIED), 4):
        batch = collate([dataset[number] for number in range(begin, min(begin + 4, size))])
        if _is_telling(batch):
            break
    return batch


def _is_telling(batch: Mapping[str, Any]) -> bool:
    """Whether both halves of a batch have labels that count, so that the loss can be tried on it."""
    rows, labels = samples_in(batch), batch.get("labels")
    if not isinstance(labels, torch.Tensor) or labels.dim() == 0 or len(labels) != rows:
        return True
    return all(bool((half != -100).any()) for half in (labels[: rows - rows // 2], labels[rows - rows // 2 :]))


def _are_of_tokens(batch: Mapping[str, Any]) -> bool:
    labels = batch.get("labels")
    return isinstance(labels, torch.Tensor) and not labels.is_floating_point() and labels.dim() >= 2


def _every_second_masked(labels: torch.Tensor) -> torch.Tensor:
    """The same labels with every second one masked among those that count; the first of each row still counts."""
    order = (labels != -100).long().cumsum(-1)
    return labels.masked_fill(order % 2 == 0, -100)


def _possible(batch: Mapping[str, Any]) -> Sequence[Weight]:
    return (labels_in, shifted_labels_in, samples_in) if _are_of_tokens(batch) else (samples_in,)


def _rows(batch: Mapping[str, Any], begin: int, end: int, rows: int) -> dict[str, Any]:
    return {name: value[begin:end] if isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == rows else value
            for name, value in batch.items()}


def _error(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-6)


def _device_of(batch: Mapping[str, Any]) -> torch.device:
    return next(value.device for value in batch.values() if isinstance(value, torch.Tensor))


@contextlib.contextmanager
def _in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    was = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was.items():
            module.training = training


__all__ = ["Weight", "find_loss_kind", "on_all_ranks", "samples_to_try", "with_some_label"]
