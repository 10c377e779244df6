"""The arguments of torch's calls as one form: torch passes lists of one tensor, tensors, options, reductions and numbers
where they belong, and DDP's join and others each have a form of their own."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from bimetal.library.interface import error
from bimetal.library.tensors import memory_of

Tensors = Sequence[torch.Tensor]


def tensors_of(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def only(tensors: Any) -> torch.Tensor:
    """The one tensor of a list: torch passes lists for devices per process that are long gone."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise error("one tensor is needed where a list of several was given", "invalid_argument")
    return tensors[0]


def first(lists: Any) -> list[torch.Tensor]:
    """torch's list of one list, or that list alone."""
    lists = list(lists)
    return list(lists[0]) if lists and not isinstance(lists[0], torch.Tensor) else lists


def operation_of(opts: Any) -> Any:
    """Options, a reduction by itself, or nothing: torch's own callers use all three."""
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def root_of(opts: Any) -> int:
    return opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank


def milliseconds_of(opts: Any) -> int:
    """0 where none is given or torch's sign for none, a negative one; no time at all is what a caller may have left, and 1."""
    timeout = opts if isinstance(opts, datetime.timedelta) else getattr(opts, "timeout", None)
    if not isinstance(timeout, datetime.timedelta) or timeout.days < 0:
        return 0
    return max(1, int(timeout.total_seconds() * 1000))


def are_alike(tensors: Tensors) -> bool:
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def counts_of(parts: Tensors, joined: torch.Tensor) -> list[int]:
    """Elements of the core in each of `parts`, which `joined` holds one after the other."""
    per_value = memory_of(joined)[1] // joined.numel() if joined.numel() else 1
    return [part.numel() * per_value for part in parts]


def check_own(part: torch.Tensor, own: torch.Tensor, what: str) -> None:
    if part.numel() != own.numel():
        raise error(f"{what} has {part.numel()} values where {own.numel()} are needed", "invalid_argument")


def check_alike_sizes(parts: Tensors, own: torch.Tensor) -> None:
    if any(part.numel() != own.numel() or part.dtype != own.dtype for part in parts):
        raise error(f"every part must have the {own.numel()} values of {own.dtype} of this rank's", "invalid_argument")
