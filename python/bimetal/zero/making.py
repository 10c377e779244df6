"""Models larger than a rank's memory: made with every parameter split among the ranks as soon as it is there."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bimetal._core import require_extension
from bimetal._errors import error
from bimetal._together import rank_weights
from bimetal.device import device
from bimetal.zero.parts import Part, part_of, split

_under_way = False


@contextlib.contextmanager
def made_in_shards(shards: str | Sequence[float] = "equal", group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Of modules made within, each rank keeps its part of every parameter from the end of the constructor that made it,
    on this rank's device; ``shard`` at level 3 takes them as they are. Values are those that rank 0 draws. What is done
    with such a parameter within, as initializing it once more, is done with the whole of it, which is there meanwhile;
    afterwards only ``gathered`` has it whole. Within another such block this one adds nothing. All ranks make the same
    modules in the same order. Collective.

    Args:
        shards: as ``shard``'s.
        group: None is the default group.

    Raises:
        bimetal.Error: ``invalid_argument`` without a process group.
    """
    global _under_way
    if _under_way:
        yield
        return
    require_extension("bimetal.zero.made_in_shards()")
    if not dist.is_initialized():
        raise error("parameters are split among the ranks of a process group, and there is none: "
                    "torch.distributed.init_process_group(\"bimetal\") comes first, or bimetal.deepspeed.init_distributed() "
                    "in a process that `bimetal launch` or torchrun has started", "invalid_argument")
    place = torch.device(device())
    weights = rank_weights("shards", shards, ("equal", "memory", "speed"), place, group)
    if not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
        raise error("shards: numbers of at least 0, not all 0", "invalid_argument")

    def split_all(parameters: Iterable[nn.Parameter]) -> None:  # in an order that all ranks have
        for parameter in parameters:
            split(parameter, weights, group, place)

    _under_way = True
    try:
        with (_WholeWhereUsed(), _constructors(lambda module: split_all(module.parameters())),
              _conversions(lambda module: split_all(module.parameters(recurse=False)))):
            yield
    finally:
        _under_way = False


class _WholeWhereUsed(TorchDispatchMode):
    """Whatever reads or changes a split parameter finds all of it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        parts: dict[int, Part] = {}
        for value in tree_leaves((args, kwargs or {})):
            part = part_of(value) if isinstance(value, torch.Tensor) else None
            if part is not None and not part.held:
                parts[id(part)] = part
        schema = getattr(func, "_schema", None)
        changes = 0 if schema is None or schema.is_mutable else None
        with torch.no_grad():
            for part in parts.values():
                part.hold()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            with torch.no_grad():
                for part in parts.values():
                    part.let_go(changes)


@contextlib.contextmanager
def _constructors(ended: Callable[[nn.Module], None]) -> Iterator[None]:
    """Calls ``ended`` whenever a module's constructor is through, those of its bases being part of it."""
    under_way: set[int] = set()
    changed: list[tuple[type, Any]] = []

    def watch(kind: type) -> None:
        own = vars(kind).get("__init__")
        if own is None or kind.__module__.startswith("torch.jit"):
            return

        @functools.wraps(own)
        def init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            outermost = id(module) not in under_way
            under_way.add(id(module))
            try:
                own(module, *args, **kwargs)
            finally:
                if outermost:
                    under_way.discard(id(module))
            if outermost:
                ended(module)

        changed.append((kind, own))
        kind.__init__ = init

    def new_kind(kind: type, **options: Any) -> None:  # as libraries that are imported within define
        super(nn.Module, kind).__init_subclass__(**options)
        watch(kind)

    for kind in _kinds_of(nn.Module):
        watch(kind)
    nn.Module.__init_subclass__ = classmethod(new_kind)
    try:
        yield
    finally:
        del nn.Module.__init_subclass__
        for kind, own in changed:
            kind.__init__ = own


@contextlib.contextmanager
def _conversions(ended: Callable[[nn.Module], None]) -> Iterator[None]:
    """Calls ``ended`` whenever ``double()``, ``to()`` and the like, which leave whole parameters, are through with a module
    and before they come to the next, so that they never leave all of them."""
    own = nn.Module._apply

    @functools.wraps(own)
    def apply(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        result = own(module, *args, **kwargs)
        ended(module)
        return result

    nn.Module._apply = apply
    try:
        yield
    finally:
        nn.Module._apply = own


def _kinds_of(base: type) -> set[type]:
    found: set[type] = set()
    waiting = [base]
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if kind not in found:
                found.add(kind)
                waiting.append(kind)
    return found
