"""Agreement of ranks through torch's store alone: the place of a rank of a group in a group of some of its ranks
(ProcessGroup.split_group), and a barrier. So a rank that does not come breaks nothing."""

from __future__ import annotations

import collections
import datetime
import time
import types
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from bimetal.library.interface import error


class Splitting:
    """The splits of one group. `store` is that group's alone."""

    def __init__(self, group: Any, store: dist.Store) -> None:
        self._group = group
        self._store = store
        self._made: collections.Counter[tuple[str, str]] = collections.Counter()

    def place(self, ranks: Sequence[int], timeout: datetime.timedelta, name: str | None) -> Any:
        """The options that torch would make for the new group (_DistributedBackendOptions): its ranks are in the order
        of this one's. None if this rank is none of them."""
        members, size = sorted({int(rank) for rank in ranks}), self._group.group_size
        if not members or len(members) != len(ranks) or members[0] < 0 or members[-1] >= size:
            raise error(f"ranks {list(ranks)} make no group: some of 0 to {size - 1} are needed, each of them once",
                        "invalid_argument")
        if self._group.group_rank not in members:
            return None
        mark = "_".join(map(str, members))
        name = name or f"{self._group.group_id}:split:{mark}"
        # The store outlives a split that is gone, and a name may be that of several.
        self._made[name, mark] += 1
        store = dist.PrefixStore(f"{name}/{mark}/{self._made[name, mark]}/", self._store)
        known = self._group.global_ranks_in_group
        return types.SimpleNamespace(
            store=store, group_id=name, group_rank=members.index(self._group.group_rank), group_size=len(members),
            timeout=timeout, global_ranks_in_group=[int(known[rank]) if known else rank for rank in members])


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
