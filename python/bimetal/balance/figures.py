"""The figures that the ranks of a BalancedBatchSampler exchange in every step."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class RankFigures:
    """One rank's figures. All but the first two are for ``bimetal.monitor``, and NaN if they are not known."""

    work: float  # what its samples cost: their lengths, or 1 each
    seconds: float  # that it computed
    waited: float = math.nan  # seconds since the loop's start
    loss: float = 0.0  # the sum over what it counts
    loss_weight: float = 0.0
    sent: float = math.nan  # bytes since the loop's start
    said: float = 0.0  # how often it has left lines of its log in the store


class Step:
    """A step whose figures are under way.

    Args:
        mine: this rank's.
        epoch, end: the step's place; the sample behind its last one.
    """

    def __init__(self, mine: RankFigures, group: dist.ProcessGroup | None, epoch: int, end: int) -> None:
        self.epoch, self.end = epoch, end
        numbers = torch.tensor([getattr(mine, field.name) for field in fields(mine)], dtype=torch.float64)
        self._everyone, self._gathering = [numbers], None
        if dist.is_initialized():
            self._everyone = [torch.empty_like(numbers) for _ in range(dist.get_world_size(group))]
            self._gathering: Any = dist.all_gather(self._everyone, numbers, group=group, async_op=True)

    def figures(self) -> list[RankFigures]:
        """By rank, once all have come."""
        if self._gathering is not None:
            self._gathering.wait()
        return [RankFigures(*numbers.tolist()) for numbers in self._everyone]

    def is_there_within(self, seconds: float) -> bool:
        """Whether figures() does not wait, after waiting so long for that."""
        until = time.monotonic() + seconds
        while self._gathering is not None and not self._gathering.is_completed():
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True
