"""The region between a matrix that is cut by columns and one that is cut by rows, and its random numbers.

All ranks compute the layers outside of such regions alike, dropout included: there their generators must be in the same
state. Within a region each rank has heads and columns of its own, and another number of them than others. There it must
draw other numbers, and leave the generators where the others do.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal._together import share_text

_SPREAD = 0x9E3779B97F4A7C15  # numbers by rank that have nothing to do with each other


class Draws:
    """This rank's draws within a region, from its entrance to its exit. Given the generators at the entrance they are
    always the same, so that recomputation for backward repeats its draws. No draw is left behind unless one was made
    inside."""

    def __init__(self, rank: int):
        self._rank = rank
        self._outside: list[tuple[Any, torch.Tensor, torch.Tensor]] = []

    def enter(self, device: torch.device) -> None:
        sources = _sources(device)
        kept = [source.get_rng_state() for source in sources]
        number = (_draw() ^ (_SPREAD * (self._rank + 1))) & (2**63 - 1)
        for source, state in zip(sources, kept, strict=True):
            source.manual_seed(number)
            self._outside.append((source, state, source.get_rng_state()))

    def leave(self) -> None:
        drawn = False
        for source, outside, begun in self._outside:
            drawn = drawn or not torch.equal(source.get_rng_state(), begun)
            source.set_rng_state(outside)
        self._outside = []
        if drawn:
            _draw()  # otherwise the next region would draw the same

    def forget(self) -> None:
        """An entrance that nobody left. The generators stay: checkpointing has put them back where they were."""
        self._outside = []


def follow_first(module: nn.Module, device: torch.device, group: dist.ProcessGroup | None) -> None:
    """The generators stand where those of the group's first rank do. Collective.

    Raises:
        bimetal.Error: ``unsupported`` where that is no help, since devices of unlike kinds draw unlike numbers (also CPUs: with
            MKL torch draws otherwise on Intel's), and the module drops.
    """
    state = torch.get_rng_state()
    dist.broadcast(state, group=group, group_src=0)
    _begin_with(state, device)
    drawn = nn.functional.dropout(torch.ones(64, device=device, dtype=torch.float32), 0.5) != 0
    _begin_with(state, device)
    everyone = share_text(f"{device.type} {zlib.crc32(bytes(drawn.tolist()))}", group)
    drops = next((name for name, part in module.named_modules()
                  if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0), None)
    if drops is not None and len(set(everyone)) > 1:
        kinds = ", ".join(told.partition(" ")[0] for told in everyone)
        raise error(f"{drops} drops, for which the ranks' devices ({kinds}) draw unlike numbers, while all ranks must drop the "
                    "same: set every p to 0", "unsupported")


def _begin_with(state: torch.Tensor, device: torch.device) -> None:
    torch.set_rng_state(state)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(_draw())
        torch.set_rng_state(state)


class _OfCpu:
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)
    manual_seed = staticmethod(torch.default_generator.manual_seed)


def _sources(device: torch.device) -> list[Any]:
    return [_OfCpu] if device.type == "cpu" else [_OfCpu, torch.get_device_module(device)]


def _draw() -> int:
    return int(torch.randint(2**62, ()))


class Region:
    """The region of one module, whose forward enters with the first layer that is cut by columns, and leaves with one
    that is cut by rows or with its end. From one thread.

    Where only some of the module's layers are checkpointed, backward enters once more without leaving: the next forward
    begins anew.

    An input of several layers, such as those of queries, keys and values, is shared once: its gradient is summed once
    over the ranks, not for each of them.
    """

    def __init__(self, ranks: _C.PartRanks, rank: int, parent: nn.Module):
        self._ranks, self._parent, self._draws = ranks, parent, Draws(rank)
        self._inside = False
        self._given: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        parent.register_forward_pre_hook(self._parent_begins)
        parent.register_forward_hook(self._parent_ends, always_call=True)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` for this rank's part of the layers behind it."""
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
    """A parameter that each rank uses for its own part of what is cut: its gradients of these uses are summed over the
    ranks. A gradient from elsewhere, such as a penalty's, is the same on all ranks and counts once.

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
