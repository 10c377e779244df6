"""How large the ranks' parts of something are, in proportion."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from bimetal import _C
from bimetal._errors import error
from bimetal.process_group import _backend_of


def rank_weights(name: str, given: str | Sequence[float], kinds: Sequence[str], device: torch.device,
                 group: dist.ProcessGroup | None) -> list[float]:
    """One for each rank, the same on all of them. Collective.

    Args:
        name: what the caller calls them, for messages.
        given: "equal", in proportion to free "memory" or to "speed" (of float32 products, measured now), if these are
            among ``kinds``, or numbers.

    Raises:
        bimetal.Error: ``invalid_argument`` for others.
    """
    ranks = dist.get_world_size(group)
    if isinstance(given, str):
        if given not in kinds:
            raise error(f"{name} \"{given}\": " + "".join(f"\"{kind}\", " for kind in kinds) + "or a number for each rank",
                        "invalid_argument")
        if given == "equal":
            return [1.0] * ranks
        if given == "memory":
            return _C.memory_weights(_backend_of(group, "cpu"), str(device))
        speeds = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(speeds, torch.tensor([_C.device_speed(str(device))], dtype=torch.float64), group=group)
        known = [float(speed) for speed in speeds]
        return known if min(known) > 0 else [1.0] * ranks
    if len(given) != ranks:
        raise error(f"{name} has {len(given)} numbers for {ranks} ranks: give one for each", "invalid_argument")
    return [float(weight) for weight in given]
