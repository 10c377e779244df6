"""What lies between a matrix that is cut by columns and one that is cut by rows."""

from __future__ import annotations

import torch
from torch import nn

from bimetal import _C
from bimetal._errors import error
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


class SharedParameter:
    """A parameter that each rank uses for its own part of what is cut: its gradients of these uses are summed over the ranks. What
    comes from elsewhere, as a penalty's, is the same on all ranks and counts once.

    Uses are those in the forward of the modules that have it. A gradient without any of these is an error.
    """

    def __init__(self, root: nn.Module, name: str, parameter: nn.Parameter, ranks: _C.PartRanks):
        self._name, self._ranks, self._used = name, ranks, False
        for module in root.modules():
            for own, candidate in module._parameters.items():
                if candidate is parameter:
                    self._within(module, own)
        trained = parameter.requires_grad
        parameter.requires_grad_(True).register_hook(self._require_used)  # also of one that is unfrozen later
        parameter.requires_grad_(trained)

    def _within(self, owner: nn.Module, own: str) -> None:
        # An attribute of the instance comes before what Module.__getattr__ finds, and is in no state_dict().
        def begin(module: nn.Module, *_: object) -> None:
            parameter = module._parameters[own]
            if parameter is not None and parameter.requires_grad and torch.is_grad_enabled():
                module.__dict__[own] = self._ranks.shared(parameter)
                self._used = True

        def end(module: nn.Module, *_: object) -> None:
            module.__dict__.pop(own, None)

        owner.register_forward_pre_hook(begin)
        owner.register_forward_hook(end, always_call=True)

    def _require_used(self, _: torch.Tensor) -> None:
        if not self._used:
            raise error(f"{self._name} is inside for bimetal.tensor.parts(), and is used outside of the forward of the module that "
                        f"has it, where its gradients are not summed: call that module", "unsupported")
