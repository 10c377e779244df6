"""Models larger than a rank's memory: made with every parameter split among the ranks as soon as it is there."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from bimetal import _C
from bimetal._errors import error
from bimetal._together import rank_weights
from bimetal._torch_check import require_torch_library
from bimetal.device import device
from bimetal.zero.optimizer import Piece

_ATTRIBUTE = "_bimetal_part"
_AT_ONCE = 16 * 2**20  # bytes
_let_go = 0  # bytes, since some were given back to the system
_parts: weakref.WeakValueDictionary[int, Part] = weakref.WeakValueDictionary()  # by what lies below their parameters


class Part:
    """The part that this rank keeps of a parameter, whose own memory is gone meanwhile. Its methods are collective.

    Args:
        parameter: whole, on every rank; rank 0's values count.
        weights: of each rank's part.
        device: where it is to be computed.
    """

    def __init__(self, parameter: nn.Parameter, weights: Sequence[float], group: dist.ProcessGroup | None,
                 device: torch.device):
        before = [0.0, *itertools.accumulate(weights)]
        ends = [round(parameter.numel() * (weight / before[-1])) for weight in before]
        self._ranges = list(zip(ends, ends[1:], strict=False))
        self._group = group
        self._holders = 1
        whole = parameter.data.to(device)
        if not whole.is_contiguous() or whole.untyped_storage().nbytes() != whole.nbytes:
            whole = whole.contiguous().clone()
        parameter.data = self._whole = whole
        self.key = _key(whole)
        _parts[self.key] = self
        self.let_go(root=0)

    @property
    def held(self) -> bool:
        return self._holders > 0

    def hold(self) -> None:
        """The parameter has its values till it is let go."""
        self._holders += 1
        if self._holders == 1:
            _C.give_memory(self._whole)
            self._fill(self._whole.view(-1))

    def let_go(self, root: int | None) -> None:
        """Args: root: the rank of the group whose values of the whole are to be kept; None: what was kept before."""
        if root is not None:
            flat = self._whole.view(-1)
            dist.broadcast(flat, _global_rank(root, self._group), self._group)
            begin, end = self._ranges[dist.get_rank(self._group)]
            self._own = flat[begin:end].clone()
        self._holders -= 1
        if self._holders == 0:
            _C.close_off(self._whole)
            _give_back(self._whole.nbytes)

    def move_to(self, pieces: Iterable[Piece]) -> None:
        """Gives these pieces of the parameter their values, and keeps none."""
        flat = torch.empty(self._whole.numel(), dtype=self._own.dtype, device=self._own.device)
        self._fill(flat)
        for piece in pieces:
            piece.tensor.copy_(flat[piece.offset:piece.offset + piece.tensor.numel()])
        moved = self._own.nbytes
        del self._own
        _give_back(moved)

    def _fill(self, flat: torch.Tensor) -> None:
        for rank, (begin, end) in enumerate(self._ranges):
            if begin == end:
                continue
            if rank == dist.get_rank(self._group):
                flat[begin:end].copy_(self._own)
            dist.broadcast(flat[begin:end], _global_rank(rank, self._group), self._group)


def part_of(tensor: torch.Tensor) -> Part | None:
    """The part of a parameter that shares memory with this tensor; None: it is whole."""
    if tensor.layout != torch.strided or not len(_parts):
        return None
    return _parts.get(_key(tensor))


def split(parameter: nn.Parameter, weights: Sequence[float], group: dist.ProcessGroup | None,
          device: torch.device) -> None:
    """Leaves each rank its part, unless that is so already. Collective."""
    if part_of(parameter) is None and parameter.numel() > 0 and not parameter.is_meta:
        with torch.no_grad(), _disable_current_modes():
            setattr(parameter, _ATTRIBUTE, Part(parameter, weights, group, device))  # lives as long as it does


def make_whole(parameters: Iterable[nn.Parameter]) -> None:
    """For good. Collective."""
    for parameter in parameters:
        part = part_of(parameter)
        if part is not None:
            with torch.no_grad(), _disable_current_modes():
                part.hold()
            _forget(parameter)


def move_to(parameter: nn.Parameter, pieces: Iterable[Piece]) -> None:
    """Gives these pieces of the split parameter, whose memory somebody else has meanwhile, their values. Collective."""
    with torch.no_grad():
        getattr(parameter, _ATTRIBUTE).move_to(pieces)
    _forget(parameter)


def _forget(parameter: nn.Parameter) -> None:
    """From now on the parameter's values do not concern this part."""
    part = vars(parameter).pop(_ATTRIBUTE, None)
    if part is not None:
        _parts.pop(part.key, None)


@contextlib.contextmanager
def gathered(parameters: Iterable[torch.Tensor], modifier_rank: int | None = None) -> Iterator[None]:
    """These have their values within; what rank ``modifier_rank`` of the group makes of them is kept, and nothing that
    others do. Collective."""
    parts = {id(part): part for part in map(part_of, parameters) if part is not None}.values()
    with torch.no_grad(), _disable_current_modes():
        for part in parts:
            part.hold()
    try:
        yield
    finally:
        with torch.no_grad(), _disable_current_modes():
            for part in parts:
                part.let_go(modifier_rank)


def _give_back(let_go: int) -> None:
    """To the system, after so many bytes. glibc's heap keeps what lies between allocations that stay, and serves none of
    its size from it, as torch asks for them aligned: without this a model that is made in parts takes the memory of the
    whole."""
    global _let_go
    _let_go += let_go
    if _let_go >= _AT_ONCE:
        _let_go = 0
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        if trim is not None:
            trim(0)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _global_rank(rank: int, group: dist.ProcessGroup | None) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


_under_way = False


@contextlib.contextmanager
def made_in_shards(shards: str | Sequence[float] = "equal", group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Each rank keeps only its part of every parameter of modules made within, from the end of the constructor that
    made it, on this rank's device; ``shard`` at level 3 takes them as they are. Values are those that rank 0 draws.
    Code within that uses such a parameter, for example to initialize it once more, gets the whole of it. Afterwards
    only ``gathered`` has it whole. Within another such block this one adds nothing. All ranks make the same modules in
    the same order. Collective.

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
    require_torch_library("bimetal.zero.made_in_shards()")
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
    """Code that reads or changes a split parameter finds all of it."""

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
