"""What lies between a matrix that is cut by columns and one that is cut by rows."""

from __future__ import annotations

import torch
from torch import nn

from bimetal import _C
from bimetal.tensor.draws import Draws


class Region:
    """Of one module, whose forward enters with the first layer that is cut by columns, and leaves with one that is cut by rows
    or with its end. From one thread.

    Where only some of the module's layers are checkpointed, backward enters once more without leaving: the next forward
    begins anew.

    What several layers are given, as those of queries, keys and values, is shared once: its gradient is summed once over the
    ranks, not for each of them.
    """

    def __init__(self, ranks: _C.PartRanks, rank: int, parent: nn.Module):
        self._ranks, self._parent, self._draws = ranks, parent, Draws(rank)
        self._inside = False
        self._given: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        parent.register_forward_pre_hook(self._parent_begins)
        parent.register_forward_hook(self._parent_ends, always_call=True)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` for this rank's part of what is made of it."""
        if not self._inside:
            self._inside = True
            if self._parent.training:
                self._draws.enter(x.device)
        if not (x.requires_grad and torch.is_grad_enabled()):
            return x
        for given, version, shared in self._given:
            if given is x and version == x._version:
                return shared
        shared = self._ranks.shared(x)
        self._given.append((x, x._version, shared))
        return shared

    def leave(self, part: torch.Tensor) -> torch.Tensor:
        """The ranks' sum."""
        self._end()
        return self._ranks.sum(part)

    def _end(self) -> None:
        if self._inside:
            self._inside = False
            self._given.clear()
            self._draws.leave()

    def _parent_begins(self, *_: object) -> None:
        self._inside = False
        self._given.clear()
        self._draws.forget()

    def _parent_ends(self, *_: object) -> None:
        self._end()
