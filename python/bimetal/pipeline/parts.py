"""Which stage has which tensors of a module, and bringing them together again."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import nn

from bimetal._together import share_text
from bimetal.pipeline.chain import Chain
from bimetal.zero.optimizer import Piece

Named = list[tuple[str, torch.Tensor]]


class Whole(Piece):
    """A parameter that this stage keeps, as what optimizers in parts know."""

    def __init__(self, name: str, tensor: nn.Parameter):
        super().__init__(name, list(tensor.shape), 0, tensor)

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        kind = self.tensor.dtype if whole.is_floating_point() else whole.dtype
        return whole.detach().to(device=self.tensor.device, dtype=kind, copy=True)


class Parts:
    """The parts of a whole module, before it is cut. Tensors that belong to no unit are on every stage.

    Attributes: parameters and buffers of `stage`, by name, parameters that are not trained among the latter;
    tied: of each trained tensor that several stages have, it or None, and these stages.
    """

    def __init__(self, chain: Chain, stage_of: list[int], stage: int):
        stages, self.stage = 1 + max(stage_of), stage
        having: dict[int, set[int]] = {}
        for unit, place in zip(chain.units, stage_of, strict=True):
            for tensor in unit.tensors():
                having.setdefault(id(tensor), set()).add(place)
        self._stages = {id(tensor): sorted(having.get(id(tensor), range(stages)))
                        for tensor in (*chain.module.parameters(), *chain.module.buffers())}
        trained = [(name, tensor) for name, tensor in chain.module.named_parameters() if tensor.requires_grad]
        kept = [(name, tensor) for name, tensor in chain.module.named_parameters() if not tensor.requires_grad]
        self.parameters: Named = [(name, tensor) for name, tensor in trained if self.here(tensor)]
        self.buffers: Named = [(name, tensor) for name, tensor in [*kept, *chain.module.named_buffers()]
                               if self.here(tensor)]
        self.tied = [(tensor if self.here(tensor) else None, self._stages[id(tensor)]) for _, tensor in trained
                     if len(self._stages[id(tensor)]) > 1]

    def here(self, tensor: torch.Tensor) -> bool:
        return self.stage in self._stages[id(tensor)]

    def first_here(self, tensor: torch.Tensor) -> bool:
        """Whether no earlier stage has it."""
        return self._stages[id(tensor)][0] == self.stage


def gather(own: dict[str, torch.Tensor], root: int | None, group: dist.ProcessGroup | None) -> dict[str, torch.Tensor]:
    """All ranks' tensors, on the CPU, on rank `root` of the group or, with None, on all; elsewhere none. A name is one
    rank's. Collective."""
    mine, ranks = dist.get_rank(group), dist.get_world_size(group)
    told = [[name, list(value.shape), str(value.dtype).removeprefix("torch.")] for name, value in own.items()]
    everything: dict[str, torch.Tensor] = {}
    for rank, text in enumerate(share_text(json.dumps(told), group)):
        for name, shape, kind in json.loads(text):
            value = own[name].detach().cpu().contiguous().clone() if rank == mine else None
            if value is None and root in (None, mine):
                value = torch.empty(shape, dtype=getattr(torch, kind))
            if root is None and ranks > 1:
                dist.broadcast(value, group=group, group_src=rank)
            elif rank == mine != root:
                dist.send(value, group=group, group_dst=root)
            elif mine == root != rank:
                dist.recv(value, group=group, group_src=rank)
            if root in (None, mine):
                everything[name] = value
    return everything
