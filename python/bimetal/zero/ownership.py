"""The owner of a parameter in shards, and the things that a loop may not do with it behind shard()'s back."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from bimetal._errors import error

Owner = Any  # a Sharded, which is made of what is here
Memory = dict[str, tuple[int, int]]  # by parameter: its storage, and where in it
_watches_optimizers = False


@dataclasses.dataclass(frozen=True)
class Advice:
    """The calls to make, in the words of the API that the script has called."""

    level: str
    state: str
    gradients: str
    optimizer: str


ADVICE = Advice(
    level="level",
    state="take state_dict() of what shard() has returned, or ask within `with sharded.whole():`",
    gradients="clip by sharded.clip_grad_norm_(max_norm), drop them by the zero_grad() of the optimizer that shard() was given, and "
              "give one that was made afterwards to sharded.attach(optimizer)",
    optimizer="give it to shard(module, optimizer), or later to sharded.attach(optimizer)")


class ShardedParameter(nn.Parameter):
    """A parameter whose gradient goes elsewhere as it comes: code that reads it in Python finds none, which would be
    wrong."""

    @property
    def grad(self) -> torch.Tensor | None:
        owner = owner_of(self)
        if owner is not None and owner.keeps_gradients:
            raise error(f"the gradient of parameter {owner.name_of(self)} is read, but it is in shards, summed over the ranks: "
                        f"{owner.advice.gradients}", "unsupported")
        return torch.Tensor.grad.__get__(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        torch.Tensor.grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        torch.Tensor.grad.__set__(self, None)


def owner_of(parameter: torch.Tensor) -> Owner | None:
    """None: it is in no shards."""
    owner = getattr(parameter, "_bimetal_sharded", None)
    return owner() if owner is not None else None


def require_free(parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """bimetal.Error ``invalid_argument`` for one that is in shards already."""
    for name, parameter in parameters:
        if owner_of(parameter) is not None:
            raise error(f"parameter {name} is in shards already: a module, and what it has in common with others, is cut once; "
                        "modules that share parameters are to be children of one", "invalid_argument")


def take_over(owner: Owner, parameters: Iterable[nn.Parameter]) -> Memory:
    """Makes these the owner's. Returns where they are, for ``check_module``."""
    global _watches_optimizers
    if not _watches_optimizers:
        register_optimizer_step_pre_hook(_check_other_optimizer)
        _watches_optimizers = True
    memory = {}
    for parameter in parameters:
        parameter._bimetal_sharded = weakref.ref(owner)
        if type(parameter) is nn.Parameter:
            parameter.__class__ = ShardedParameter
        memory[owner.name_of(parameter)] = _place_of(parameter)
    return memory


def check_optimizer(owner: Owner, optimizer: torch.optim.Optimizer) -> None:
    """bimetal.Error ``invalid_argument`` where it has other parameters than this rank's pieces."""
    pieces = {id(piece.tensor) for piece in owner.pieces}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in pieces:
                raise error(f"the optimizer has a parameter of shape {list(parameter.shape)} that is no piece of the module in "
                            "shards: add_param_group() comes before shard(), with parameters of the module alone",
                            "invalid_argument")


def check_module(owner: Owner, memory: Memory) -> None:
    """bimetal.Error ``invalid_argument`` where its parameters are no longer those that were cut."""
    for name, parameter in owner.module.named_parameters():
        if owner_of(parameter) is not owner:
            if parameter.requires_grad:
                raise error(f"parameter {name} requires a gradient, but it was frozen, or not there, when the module was cut into "
                            "shards, and would never move: unfreeze and add what is to be trained before", "invalid_argument")
        elif _place_of(parameter) != memory[owner.name_of(parameter)]:
            raise error(f"parameter {name} has been given other memory than what is in shards (p.data = …, module.to(…)), and "
                        "would not follow its updates: write into it (p.copy_(…) under torch.no_grad()), within `with "
                        "sharded.whole(modifier_rank=0):`", "invalid_argument")


def check_no_gradients(parameters: Mapping[str, nn.Parameter]) -> None:
    """bimetal.Error ``unsupported`` where somebody has set one. While none that a backward has added is held back."""
    for name, parameter in parameters.items():
        if parameter.numel() > 0 and torch.Tensor.grad.__get__(parameter) is not None:
            raise error(f"parameter {name} has a gradient that no backward() has added to this step (p.grad = …, or a backward "
                        "before shard()), and that would be lost: let backward() bring all gradients of parameters in shards",
                        "unsupported")


def _check_other_optimizer(optimizer: torch.optim.Optimizer, _: tuple, __: dict) -> None:
    """One that has whole parameters steps nothing: what it was made of has no gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            owner = owner_of(parameter)
            if owner is not None:
                raise error(f"an optimizer steps parameter {owner.name_of(parameter)} as a whole, which is in shards, since it was "
                            f"made, or the parameter added to it, afterwards: {owner.advice.optimizer}", "invalid_argument")


def _place_of(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter.untyped_storage()._cdata, parameter.storage_offset()
