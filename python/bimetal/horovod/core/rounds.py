"""One round of negotiation on the wire: every rank's announcement reaches every rank."""

from __future__ import annotations

import struct

import torch
import torch.distributed as dist

# Announcements up to this travel in one exchange, which is every one of ordinary training.
_SHORT = 1024
_LENGTH = struct.Struct("<q")


class Rounds:
    """Exchanges byte strings between all ranks of a process group. For one thread."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = group
        self._size = group.size()
        self._mine = bytearray(_SHORT)
        self._everyone = bytearray(_SHORT * self._size)
        self._mine_tensor = torch.frombuffer(self._mine, dtype=torch.uint8)
        self._everyone_tensor = torch.frombuffer(self._everyone, dtype=torch.uint8)

    def exchange(self, text: bytes) -> list[bytes]:
        """The ranks' texts, in order. Waits for all ranks, by the group's timeout; raises bimetal.Error."""
        room = _SHORT - _LENGTH.size
        _LENGTH.pack_into(self._mine, 0, len(text))
        if len(text) <= room:
            self._mine[_LENGTH.size:_LENGTH.size + len(text)] = text
        self._group._allgather_base(self._everyone_tensor, self._mine_tensor).wait()
        lengths = [_LENGTH.unpack_from(self._everyone, rank * _SHORT)[0] for rank in range(self._size)]
        if max(lengths) <= room:
            starts = [rank * _SHORT + _LENGTH.size for rank in range(self._size)]
            return [bytes(self._everyone[start:start + length]) for start, length in zip(starts, lengths, strict=True)]
        return self._exchange_long(text, lengths)

    def _exchange_long(self, text: bytes, lengths: list[int]) -> list[bytes]:
        longest = max(lengths)
        mine = torch.frombuffer(bytearray(text.ljust(longest, b"\0")), dtype=torch.uint8)
        everyone = torch.empty(self._size * longest, dtype=torch.uint8)
        self._group._allgather_base(everyone, mine).wait()
        return [everyone[rank * longest:rank * longest + length].numpy().tobytes()
                for rank, length in enumerate(lengths)]
