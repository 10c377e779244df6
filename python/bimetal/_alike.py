"""What all ranks must have been told alike."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as dist

from bimetal._errors import error
from bimetal.zero import states


def require_alike(call: str, told: dict[str, Any], group: dist.ProcessGroup | None) -> None:
    """bimetal.Error ``call_mismatch`` on every rank, which names one that was told something else than the first, where
    what all ranks do follows from these. Collective.

    Args:
        call: as a user knows it, for the message.
        told: by name; of what JSON has.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    first, *others = map(json.loads, states.share_text(json.dumps(told, default=int), group))
    for rank, other in zip(ranks[1:], others, strict=True):
        for name, value in first.items():
            if other[name] != value:
                raise error(f"rank {rank} calls {call} with {name} = {other[name]}, rank {ranks[0]} with {value}: give "
                            "all ranks the same", "call_mismatch", rank)
