"""A barrier by way of the store, so that a rank that does not come breaks nothing: what
src/bimetal/c10d/monitored_barrier.h does for the extension, with the same keys."""

from __future__ import annotations

import time

import torch.distributed as dist

from bimetal.library.interface import error

_FOR_THE_VERDICT_S = 0.5  # beyond the deadline, for rank 0's word about who was missing
_PAUSE_S = 0.002


def monitored_barrier(store: dist.Store, rank: int, members: list[int], number: int, seconds: float) -> None:
    """Returns once all have come; raises `timeout` on every rank that is there, naming all that are not.

    Args:
        store: the group's alone.
        rank: this process's in the group.
        members: the ranks' names in messages, one for each.
        number: of this barrier in its group, from 1.
        seconds: how long to wait.
    """
    until = time.monotonic() + seconds
    verdict = _key(number, "verdict")
    if rank != 0:
        store.set(_key(number, str(rank)), "here")
        if not _wait(store, verdict, until + _FOR_THE_VERDICT_S):
            _report(members[:1])
        words = store.get(verdict).decode().split()
        if words != ["all"]:
            _report([int(word) for word in words])
        return
    missing = [member for other, member in enumerate(members)
               if other and not _wait(store, _key(number, str(other)), until)]
    store.set(verdict, " ".join(map(str, missing)) or "all")
    if missing:
        _report(missing)


def _key(number: int, name: str) -> str:
    return f"monitored_barrier/{number}/{name}"


def _wait(store: dist.Store, key: str, until: float) -> bool:
    while not store.check([key]):
        if time.monotonic() >= until:
            return False
        time.sleep(_PAUSE_S)
    return True


def _report(missing: list[int]) -> None:
    raise error(f"these ranks did not come to the monitored barrier in time: {', '.join(map(str, missing))}",
                "timeout", missing[0])
