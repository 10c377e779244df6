"""The tensors of one call as memory that the core can read and write, and reductions as it knows them."""

from __future__ import annotations

import contextlib
import datetime
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from bimetal._synchronize import beside, synchronize
from bimetal.library.interface import error

# As bimetal_c.h numbers them: the type, and how many of it make up one value.
_ELEMENTS = {
    torch.float32: (1, 1), torch.float64: (2, 1), torch.float16: (3, 1), torch.bfloat16: (4, 1), torch.int8: (5, 1),
    torch.int16: (6, 1), torch.int32: (7, 1), torch.int64: (8, 1), torch.uint8: (9, 1), torch.complex64: (1, 2),
    torch.complex128: (2, 2), torch.complex32: (3, 2),
}
_PLAIN = {dtype: kind for dtype, (kind, per_value) in _ELEMENTS.items() if per_value == 1}
_BYTES = 9
_strided = torch.strided
_SUM, _AVG, _MIN, _MAX, _PRODUCT = range(1, 6)
_Op = dist.ReduceOp
_NUMBERS = {_Op.SUM: _SUM, _Op.AVG: _AVG, _Op.MIN: _MIN, _Op.MAX: _MAX, _Op.PRODUCT: _PRODUCT}
_TRUTHS = {_Op.SUM: _MAX, _Op.MAX: _MAX, _Op.BOR: _MAX, _Op.PRODUCT: _MIN, _Op.MIN: _MIN, _Op.BAND: _MIN}
_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
_IN_PLACE = {_Op.BAND: "bitwise_and_", _Op.BOR: "bitwise_or_", _Op.BXOR: "bitwise_xor_"}


class Bits(NamedTuple):
    """A reduction by bits: the core has none, so bitwise.py makes them."""

    code: int  # torch's number of it
    in_place: str  # the tensors' method


class Use(enum.Enum):
    """A call's use of a tensor."""

    READ = 0  # its values go out; it stays as it is
    WRITE = 1  # it takes the result, its old values don't matter
    UPDATE = 2  # both
    SCRATCH = 3  # its values go out, and the call overwrites them: a copy is lent


def element_of(tensor: torch.Tensor) -> tuple[int, int]:
    """(type, how many of it make up one value); types without a name here travel as bytes."""
    return _ELEMENTS.get(tensor.dtype) or (_BYTES, tensor.element_size())


def plain_type_of(tensor: torch.Tensor) -> int:
    """The type of its elements where the tensor's memory is for the core to use as it is, one element for a value; else 0."""
    if tensor.is_cpu and tensor.layout is _strided and tensor.is_contiguous() and not tensor.is_neg():
        return _PLAIN.get(tensor.dtype, 0)
    return 0


def memory_of(host: torch.Tensor) -> tuple[int, int, int]:
    """(address, count, type) of a contiguous tensor on the CPU."""
    kind, per_value = element_of(host)
    return host.data_ptr(), host.numel() * per_value, kind


class HostTensors:
    """Lends contiguous CPU tensors as they are, and copies in host memory of all others."""

    __slots__ = ("_held", "_last", "_results", "inputs")

    def __init__(self, held: Sequence[torch.Tensor] = ()) -> None:
        self.inputs: list[torch.Tensor] = []  # read by the call
        self._held = list(held)
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []  # from, to
        self._last: list[Callable[[], None]] = []

    def afterwards(self, action: Callable[[], None]) -> None:
        """After the call, before results are handed back. Objects that it refers to are kept as long as the memory."""
        self._last.append(action)

    def lend(self, tensor: torch.Tensor, use: Use) -> torch.Tensor:
        """A contiguous CPU tensor of the same shape and type."""
        if use is not Use.WRITE:
            self.inputs.append(tensor)
        if use is not Use.SCRATCH and (plain_type_of(tensor) or _is_plain(tensor)):
            self._held.append(tensor)
            return tensor
        _check_layout(tensor)
        with torch.no_grad():
            host = _host_memory(tensor.shape, tensor)
            _wait_for_all_of([tensor])
            if use is not Use.WRITE:
                host.copy_(tensor)
        self._held.append(host)
        if use in (Use.WRITE, Use.UPDATE):
            self._results.append((host, tensor))
        return host

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor of one dimension that holds all of them one after the other."""
        self.inputs += parts
        _check_alike(parts)
        with torch.no_grad():
            flat = _host_memory((sum(part.numel() for part in parts),), parts[0])
            at = 0
            _wait_for_all_of(parts)
            for part in parts:
                flat.narrow(0, at, part.numel()).view(part.shape).copy_(part)
                at += part.numel()
        self._held.append(flat)
        return flat

    def divide(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Room for all of them, which get their own from it."""
        _check_alike(parts)
        flat = _host_memory((sum(part.numel() for part in parts),), parts[0])
        at = 0
        for part in parts:
            self._results.append((flat.narrow(0, at, part.numel()).view(part.shape), part))
            at += part.numel()
        _wait_for_all_of(parts)
        self._held.append(flat)
        return flat

    def has_results(self) -> bool:
        """Whether hand_back() has something to do."""
        return bool(self._last or self._results)

    def hand_back(self) -> None:
        """After the call: copies results to where the caller wants them, and waits until they are there."""
        if not self.has_results():
            return
        with torch.no_grad():
            for action in self._last:
                action()
            for source, target in self._results:
                with beside(target.device):
                    target.copy_(source)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous() and not (
        tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _wait_for_all_of(tensors: Sequence[torch.Tensor]) -> None:
    """Any use of their memory that is under way comes before the call, on any stream: torch's hooks (powerSGD_hook)
    begin some calls in callbacks' streams, which wait for no other."""
    for device in {tensor.device for tensor in tensors}:
        synchronize(device)


def _host_memory(shape: Sequence[int], of: torch.Tensor) -> torch.Tensor:
    """For values of that tensor's type: page-locked memory if it is a card's and the system grants that."""
    if of.device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            return torch.empty(shape, dtype=of.dtype, pin_memory=True)
    return torch.empty(shape, dtype=of.dtype)


def _check_layout(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise error(f"tensors of layout {tensor.layout} cannot be exchanged; make them dense first", "unsupported")


def _check_alike(parts: Sequence[torch.Tensor]) -> None:
    for part in parts:
        _check_layout(part)
        if part.dtype != parts[0].dtype:
            raise error(f"the tensors of one operation are of different types: {parts[0].dtype} and {part.dtype}",
                        "invalid_argument")


class Reduction:
    """A reduction for tensors of one type: the core's part, and the work before it.

    Where ``bits`` are set, the core has no such reduction, and ``number`` is none of its own.
    """

    __slots__ = ("bits", "number", "plain", "_factor")

    def __init__(self, number: int, bits: Bits | None = None, factor: Any = None) -> None:
        self.number, self.bits, self._factor = number, bits, factor
        self.plain = bits is None and factor is None  # the core does it alone

    @property
    def averages(self) -> bool:
        return self.number == _AVG

    @property
    def adds(self) -> bool:
        return self.averages or self.number == _SUM

    def prepare(self, host: torch.Tensor) -> None:
        if self._factor is None:
            return
        with torch.no_grad():
            host.mul_(self._factor.to(host.device, host.dtype) if isinstance(self._factor, torch.Tensor)
                      else self._factor)


_known: dict[tuple[int, torch.dtype], Reduction] = {}


def reduction_of(op: Any, dtype: torch.dtype) -> Reduction:
    """torch's. Error(unsupported) if there is none for tensors of that type."""
    # torch hands out either kind: ReduceOp around a RedOpType, or that itself.
    kind = getattr(op, "op", op)
    key = (int(kind), dtype)
    known = _known.get(key)
    if known is not None:  # comparing what torch calls reductions takes as long as a short call
        return known
    if kind == _Op.PREMUL_SUM:
        return Reduction(_number_of(_Op.SUM, dtype), factor=op.__getstate__()[1])
    bits = _bits_of(kind, dtype)
    return _known.setdefault(key, Reduction(0, bits) if bits else Reduction(_number_of(kind, dtype)))


def _bits_of(kind: Any, dtype: torch.dtype) -> Bits | None:
    """None if it is no reduction by bits. (On bool BAND and BOR are minimum and maximum.)"""
    in_place = next((name for op, name in _IN_PLACE.items() if op == kind), None)
    there = dtype in _INTEGERS or (dtype == torch.bool and kind == _Op.BXOR)
    return Bits(int(kind), in_place) if in_place and there else None


def _number_of(kind: Any, dtype: torch.dtype) -> int:
    """As bimetal_c.h numbers it. Error(unsupported) if there is none for tensors of that type."""
    # By comparison: what torch calls equal need not hash alike in all of its versions.
    numbers = _TRUTHS if dtype == torch.bool else _NUMBERS
    number = next((number for op, number in numbers.items() if op == kind), None)
    by_bytes = dtype not in _ELEMENTS and dtype != torch.bool
    by_parts = dtype.is_complex and number not in (_SUM, _AVG)
    whole = number == _AVG and not (dtype.is_floating_point or dtype.is_complex)
    if number is None or by_bytes or by_parts or whole:
        raise error(f"the reduction {str(kind).split('.')[-1]} is not there for tensors of type "
                    f"{str(dtype).removeprefix('torch.')}", "unsupported")
    return number


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
