"""A module in parts, as a training loop has it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._together import own_states, refuse_norms, refuse_states, require_alike
from bimetal.pipeline.loss import digest_of
from bimetal.pipeline.parts import gather
from bimetal.zero.optimizer import Piece
from bimetal.zero.states import WholeStates

_PARTED = "bimetal.tensor.parts(…)"  # in messages: the call that has returned it


class Part(Piece):
    """The part that this rank keeps of one parameter. It may be all of it."""

    def __init__(self, name: str, parameter: nn.Parameter, cuts: _C.TensorCuts, rank: int):
        super().__init__(name, list(parameter.shape), 0, parameter)
        self.is_cut = cuts.has(name)
        self._cuts, self._rank = cuts, rank

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        part = self._cuts.part(self.name, whole.detach(), self._rank)
        kind = self.tensor.dtype if whole.is_floating_point() else whole.dtype
        return part.to(device=self.tensor.device, dtype=kind, copy=True)

    def cut(self) -> None:
        """The parameter becomes this rank's part; gradients are gone."""
        if self.is_cut:
            self.tensor.grad = None
            self.tensor.data = self.part_of(self.tensor)


class Parted(WholeStates):
    """The object that ``parts`` returns. All ranks of the group make the same calls.

    Attributes: module, weights, group.
    """

    _without = "parts() was given no optimizer"

    def __init__(self, module: nn.Module, pieces: list[Part], cuts: _C.TensorCuts, ranks: _C.PartRanks,
                 shapes: dict[str, Any], weights: list[float], group: dist.ProcessGroup | None):
        self.module, self.weights, self.group = module, weights, group
        self.pieces, self._cuts, self._ranks, self._shapes = pieces, cuts, ranks, shapes
        self._rank = dist.get_rank(group)
        self._names = {id(piece.tensor): piece.name for piece in pieces}
        self._groups = []
        self._steps = 0
        self._first_call = module.register_forward_pre_hook(self._compare_batches, with_kwargs=True)
        cut = {id(piece.tensor) for piece in pieces if piece.is_cut and len(weights) > 1}
        refuse_norms([piece.tensor for piece in pieces if id(piece.tensor) in cut],
                     f"{_PARTED}.clip_grad_norm_()")
        refuse_states([part for part in module.modules() if any(id(tensor) in cut for tensor in part.parameters())], None, _PARTED)

    def watch(self, optimizer: torch.optim.Optimizer, groups: list[list[str]], follow: int) -> None:
        """``parts`` calls it. Args: groups: names of the parameters that each of the optimizer's groups had."""
        self._optimizer, self._groups = optimizer, groups
        if len(self.weights) > 1:
            refuse_states([], optimizer, _PARTED)

        def stepped(*_: Any) -> None:
            self._steps += 1
            if follow and self._steps % follow == 0:
                self.follow_first()

        optimizer.register_step_post_hook(stepped)

    def follow_first(self) -> None:
        """Parameters that are trained and whole on all ranks become rank 0's, as after steps of the optimizer that
        ``parts`` was given. Collective."""
        self._ranks.follow_first([piece.tensor.detach() for piece in self.pieces
                                  if not piece.is_cut and piece.tensor.requires_grad])

    def __repr__(self) -> str:
        here = sum(piece.tensor.numel() for piece in self.pieces)
        whole = sum(piece.shape.numel() for piece in self.pieces)
        return f"part {self._rank} of {len(self.weights)}: {here} of {whole} parameters"

    def kept_state(self) -> dict[str, Any]:
        with own_states():
            return self.module.state_dict(keep_vars=True)

    def _counts(self, piece: Part) -> bool:
        return piece.is_cut or self._rank == 0

    def _gather(self, own: dict[str, torch.Tensor], root: int | None) -> dict[str, torch.Tensor]:
        """Whole tensors from the ranks' parts of them, on rank `root` or, with None, on all."""
        cut = {piece.name: piece.shape for piece in self.pieces if piece.is_cut}
        found = gather({f"{self._rank}:{name}": value for name, value in own.items() if name in cut or self._rank == 0},
                       root, self.group)
        whole: dict[str, torch.Tensor] = {}
        for key in list(found):
            rank, _, name = key.partition(":")
            part = found.pop(key)
            if name in cut:
                self._put(whole.setdefault(name, torch.empty(cut[name], dtype=part.dtype)), name, int(rank), part)
            else:
                whole[name] = part
        return whole

    def _put(self, whole: torch.Tensor, name: str, rank: int, part: torch.Tensor) -> None:
        dim, places = self._cuts.places(name, rank)
        for (first, count), segment in zip(places, part.split([count for _, count in places], dim), strict=True):
            whole.narrow(dim, first, count).copy_(segment)

    def _compare_batches(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """In the first call: loaders that shuffle by unlike seeds are found out."""
        self._first_call.remove()
        require_alike("the module", {"a batch of digest": digest_of({"args": args, "kwargs": kwargs})}, self.group)
