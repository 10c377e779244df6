"""Where a rank of a group stands in a group of some of its ranks: ProcessGroup.split_group."""

from __future__ import annotations

import collections
import datetime
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
        """What torch would say of the new group (_DistributedBackendOptions): its ranks are in the order of this one's.
        None where this rank is none of them."""
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
