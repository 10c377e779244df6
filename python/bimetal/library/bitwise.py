"""Reductions by bits, which the core does not compute: what src/bimetal/c10d/reductions/bitwise.cpp does for the extension, byte
for byte. The ranks' values are gathered, and each rank that wants the result makes it."""

from __future__ import annotations

from typing import Any

import torch

from bimetal.library.interface import error, lib
from bimetal.library.tensors import Bits, HostTensors, Use, memory_of


class BitwiseReduction:
    """`root`: who gets the result, or None for all ranks."""

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
