"""Reductions that the core does not compute, by bits and of sparse tensors: what src/bimetal/c10d/reductions does for the
extension, byte for byte. By bits the ranks' values are gathered, and each rank that wants the result makes it."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_int64, c_void_p
from typing import Any

import torch

from bimetal.library.interface import check, error, lib
from bimetal.library.tensors import Bits, HostTensors, Reduction, Use, element_of, memory_of, reduction_of


class BitwiseReduction:
    """`root`: the rank that gets the result, or None for all ranks."""

    def __init__(self, host: HostTensors, tensor: torch.Tensor, bits: Bits, rank: int, size: int,
                 root: int | None = None) -> None:
        self._bits, self._root = bits, root
        self._wanted = root is None or root == rank
        self._result = host.lend(tensor, Use.UPDATE if self._wanted else Use.READ)
        with torch.no_grad():
            # The operation goes along: to the core it is a gathering like any other. (For bool: there is one alone.)
            self._code = torch.full((1,), bits.code, dtype=tensor.dtype)
            self._mine = torch.cat([self._result.reshape(-1), self._code])
            self._all = torch.empty((size if self._wanted else 0, self._mine.numel()), dtype=tensor.dtype)
        host.afterwards(self._finish)

    def begin(self, group: int, within: int, work: Any) -> int:
        address, count, kind = memory_of(self._mine)
        place = self._all.data_ptr()
        if self._root is None:
            return lib.all_gather(group, address, count, place, None, kind, within, work)
        return lib.gather(group, address, place, count, kind, self._root, within, work)

    def _finish(self) -> None:
        if not self._wanted:
            return
        for other, values in enumerate(self._all):
            if not torch.equal(values[-1:], self._code):
                raise error(f"rank {other} of the group reduces by another operation of bits", "call_mismatch", other)
        result = self._result.view(-1)
        result.copy_(self._all[0, :-1])
        for values in self._all[1:, :-1]:
            getattr(result, self._bits.in_place)(values)


class SparseReduction:
    """Every rank gathers the others' values and adds them up in the order of the ranks."""

    def __init__(self, tensor: torch.Tensor, op: Any, ranks: int) -> None:
        reduction = reduction_of(op, tensor.dtype)
        if not reduction.adds:
            raise error("sparse tensors can be summed and averaged alone", "unsupported")
        self._average = reduction.averages
        self._tensor, self._ranks = tensor, ranks
        self._gathered = c_void_p()
        with torch.no_grad():
            self._own = tensor.detach().coalesce()
            self._mine = _packed(self._own, reduction)

    def __del__(self) -> None:
        if lib is not None and getattr(self, "_gathered", None):
            lib.gathered_free(self._gathered)

    def begin(self, group: int, within: int, work: Any) -> int:
        return lib.all_gather_bytes(group, self._mine.data_ptr(), self._mine.numel(), ctypes.byref(self._gathered),
                                    within, work)

    def finish(self) -> None:
        """After the call: the tensor becomes the coalesced result."""
        total = self._part(0)
        for rank in range(1, self._ranks):
            total = total + self._part(rank)
        total = total.coalesce()
        if self._average:
            total._values().div_(self._ranks)
        self._tensor.copy_(total)

    def _part(self, rank: int) -> torch.Tensor:
        data, size = c_void_p(), c_int64()
        check(lib.gathered_part(self._gathered, rank, ctypes.byref(data), ctypes.byref(size)))
        return _unpacked((ctypes.c_ubyte * size.value).from_address(data.value or 0), self._own, rank)


def _head_of(coalesced: torch.Tensor) -> list[int]:
    """The number of values, in which alone ranks may differ, then their type and the shape."""
    kind, per_value = element_of(coalesced)
    return [coalesced._nnz(), kind * 16 + per_value, coalesced.sparse_dim(), coalesced.dim(), *coalesced.shape]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _packed(coalesced: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    values = coalesced._values().to("cpu", copy=True)
    reduction.prepare(values)
    head = torch.tensor(_head_of(coalesced), dtype=torch.int64)
    packed = torch.cat([_as_bytes(head), _as_bytes(coalesced._indices()), _as_bytes(values)])
    return torch.nn.functional.pad(packed, (0, -packed.numel() % 8))  # the next rank's begin at a word, too


def _unpacked(part: Any, like: torch.Tensor, sender: int) -> torch.Tensor:
    mine = _head_of(like)
    head = torch.frombuffer(part, dtype=torch.int64, count=len(mine)).tolist() if len(part) >= 8 * len(mine) else []
    if head[1:] != mine[1:]:
        raise error(f"rank {sender} of the group all-reduces a sparse tensor of another shape or type than this one's "
                    f"{' x '.join(map(str, like.shape))} of {str(like.dtype).removeprefix('torch.')}",
                    "call_mismatch", sender)
    count, start = head[0], 8 * len(mine)
    indices_shape, values_shape = (like.sparse_dim(), count), (count, *like._values().shape[1:])
    values_at = start + 8 * like.sparse_dim() * count
    size = values_at + math.prod(values_shape) * like.element_size()
    if count < 0 or size + -size % 8 != len(part):
        raise error(f"rank {sender} of the group sent {len(part)} bytes for {count} values of a sparse tensor",
                    "corrupt_data", sender)
    return torch.sparse_coo_tensor(_view(part, torch.int64, start, indices_shape),
                                   _view(part, like.dtype, values_at, values_shape), like.shape,
                                   check_invariants=False)._coalesced_(True)


def _view(part: Any, dtype: torch.dtype, start: int, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    flat = torch.frombuffer(part, dtype=dtype, count=count, offset=start) if count else torch.empty(0, dtype=dtype)
    return flat.view(shape)
