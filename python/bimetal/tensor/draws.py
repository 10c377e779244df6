"""Random numbers where ranks have unlike parts.

Whatever stands between cut matrices is computed by all ranks alike, dropout included: their generators must stand alike
there. Within what is cut each rank has heads and columns of its own, and not the others' number of them: it must draw
otherwise than they, and leave the generators where the others do.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal._errors import error
from bimetal.zero import states

_SPREAD = 0x9E3779B97F4A7C15  # numbers by rank that have nothing to do with each other


class Draws:
    """This rank's draws, from where it enters what is cut to where it leaves it. Given the generators at the entrance they
    are always the same, so that what is computed again for backward draws what it drew. No draw is left behind unless
    one was made inside."""

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
            _draw()  # else what is entered next would draw the same

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
    everyone = states.share_text(f"{device.type} {zlib.crc32(bytes(drawn.tolist()))}", group)
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
