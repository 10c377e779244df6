"""The decisions of a round: pure functions of what all ranks have announced, with equal results on all of them.

A rank announces the requests that it has and that have not been run. A request is run as soon as every rank has
announced one of that name, in any order; ranks that have joined (they ran out of data) count as having announced all of
them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from bimetal.horovod.core.request import ReduceOp, Signature


@dataclass(frozen=True)
class Announcement:
    """One rank's, in one round. ``stalled``: its threads wait, and nothing has happened for long."""

    requests: tuple[Signature, ...]
    joined: bool = False
    stalled: bool = False

    def encode(self) -> bytes:
        """A value of JSON: nothing that comes from a peer is executed."""
        return json.dumps([[request.to_json() for request in self.requests], self.joined, self.stalled],
                          separators=(",", ":")).encode()

    @staticmethod
    def decode(text: bytes) -> Announcement:
        requests, joined, stalled = json.loads(text)
        return Announcement(tuple(Signature.from_json(parts) for parts in requests), joined, stalled)


@dataclass
class Decision:
    """``run``: for each name, every rank's signature, None for one that has joined. ``refused``: name → why.
    ``deadlock``: why nothing will ever happen, else None. ``all_joined``: join() is over."""

    run: list[list[Signature | None]] = field(default_factory=list)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)  # code and message
    deadlock: str | None = None
    all_joined: bool = False


def decide(announcements: Sequence[Announcement], ranks: Sequence[int] | None = None) -> Decision:
    """The actions of all ranks now. ``ranks``: the numbers by which messages call those that have announced; None: from
    0."""
    ranks = range(len(announcements)) if ranks is None else ranks
    decision = Decision()
    by_name = [{request.name: request for request in rank.requests} for rank in announcements]
    names = dict.fromkeys(name for rank in by_name for name in rank)  # ordered
    for name in names:
        found = [rank.get(name) for rank in by_name]
        if all(request or rank.joined for request, rank in zip(found, announcements, strict=True)):
            problem = _difference(found, ranks) or _not_with_joined(found, ranks)
            if problem:
                decision.refused[name] = problem
            else:
                decision.run.append(found)
    if decision.run or decision.refused:
        return decision
    decision.all_joined = not names and all(rank.joined for rank in announcements)
    if names and all(rank.stalled or rank.joined for rank in announcements):
        decision.deadlock = _deadlock(announcements, ranks)
    return decision


def _difference(found: Sequence[Signature | None], ranks: Sequence[int]) -> tuple[str, str] | None:
    first, reference = next((rank, request) for rank, request in zip(ranks, found, strict=True) if request)
    for rank, request in zip(ranks, found, strict=True):
        if request and _comparable(request) != _comparable(reference):
            return "call_mismatch", (f"ranks ask for different things by one name: rank {first} for "
                                     f"{_in_full(reference)}, rank {rank} for {_in_full(request)}")
    return None


def _comparable(request: Signature) -> tuple:
    """The parts of a signature that must be equal on all ranks."""
    tensors: tuple = request.tensors
    if request.kind in ("allgather", "alltoall"):  # the first dimension is each rank's own
        tensors = tuple((dtype, shape[1:]) for dtype, shape in tensors)
    return request.kind, tensors, request.op, request.root, request.prescale, request.postscale


def _in_full(request: Signature) -> str:
    extra = []
    if request.kind in ("allreduce", "reducescatter"):
        extra.append(f"op {ReduceOp(request.op).name}")
        if (request.prescale, request.postscale) != (1.0, 1.0):
            extra.append(f"scaled by {request.prescale} and {request.postscale}")
    if request.kind == "broadcast":
        extra.append(f"root rank {request.root}")
    return ", ".join([str(request), *extra])


def _not_with_joined(found: Sequence[Signature | None], ranks: Sequence[int]) -> tuple[str, str] | None:
    joined = [rank for rank, request in zip(ranks, found, strict=True) if request is None]
    if not joined:
        return None
    request = next(request for request in found if request)
    who = f"rank {joined[0]} has joined (it ran out of data)"
    if request.kind == "broadcast" and request.root in joined:
        return "unsupported", f"{request}: its root, {who}"
    reduces = request.kind in ("allreduce", "reducescatter")
    if reduces and request.op not in (ReduceOp.Sum, ReduceOp.Average):
        return "unsupported", (f"{request}: {who}, and the zeros it contributes have no meaning for "
                               f"{ReduceOp(request.op).name}")
    if request.kind == "alltoall":
        return "unsupported", f"{request}: {who}, and what is sent to it would be lost"
    return None


def _deadlock(announcements: Sequence[Announcement], ranks: Sequence[int]) -> str:
    waits = []
    for rank, announcement in zip(ranks, announcements, strict=True):
        if announcement.requests:
            first, *more = announcement.requests
            waits.append(f"rank {rank} for {first}{f' and {len(more)} more' if more else ''}")
    return "the ranks wait for operations that the others do not ask for: " + "; ".join(waits)


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
