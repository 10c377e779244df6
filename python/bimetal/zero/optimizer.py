"""An optimizer of torch's whose parameters become what a rank keeps of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bimetal._errors import error

# Classes of torch.optim whose update of an element depends on nothing but that element.
_BY_ELEMENT = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


class Piece:
    """The piece that this rank keeps of one parameter.

    Attributes: name of the parameter, its shape, the piece's first element in it (row-major), and the piece itself, a
    leaf of one dimension.
    """

    def __init__(self, name: str, shape: list[int], offset: int, tensor: torch.Tensor):
        self.name, self.shape, self.offset, self.tensor = name, torch.Size(shape), offset, tensor

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """A copy of the same elements of something that has the parameter's shape, on the piece's device."""
        part = whole.detach().reshape(-1)[self.offset:self.offset + self.tensor.numel()]
        kind = self.tensor.dtype if part.is_floating_point() else part.dtype
        return part.to(device=self.tensor.device, dtype=kind, copy=True)


def require_by_element(optimizer: torch.optim.Optimizer) -> None:
    """bimetal.Error ``unsupported`` for optimizers that would do something else with parts of tensors."""
    kind = type(optimizer)
    if kind.__module__.startswith("torch.optim") and kind.__name__ in _BY_ELEMENT:
        return
    if getattr(optimizer, "by_element", False):
        return
    raise error(f"{kind.__name__} cannot be given parts of tensors as far as is known: shards go with torch.optim's "
                f"{', '.join(_BY_ELEMENT)}, and with those that have by_element = True, whose update of an "
                "element depends on that element alone", "unsupported")


def take_pieces(optimizer: torch.optim.Optimizer, model: nn.Module, pieces: list[Piece]) -> list[list[str]]:
    """Replaces the optimizer's parameters by the pieces of them, and its states by their parts.

    Returns:
        the names of the parameters in each of its groups, as they were.

    Raises:
        bimetal.Error: ``invalid_argument``, before anything is changed, for a parameter of another model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [[_name_in(names, parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    of: dict[str, list[Piece]] = {}
    for piece in pieces:
        of.setdefault(piece.name, []).append(piece)
    whole_states = dict(optimizer.state)
    optimizer.state.clear()
    for group, group_names in zip(optimizer.param_groups, groups, strict=True):
        for parameter, name in zip(group["params"], group_names, strict=True):
            for piece in of.get(name, []):
                if parameter in whole_states:
                    optimizer.state[piece.tensor] = part_of_state(piece, whole_states[parameter])
        group["params"] = [piece.tensor for name in group_names for piece in of.get(name, [])]
    return groups


def part_of_state(piece: Piece, state: dict[str, Any]) -> dict[str, Any]:
    """The piece's part of a parameter's state: tensors of the parameter's shape are cut, all others copied."""
    part = {}
    for field, value in state.items():
        if isinstance(value, torch.Tensor) and field != "step" and value.shape == piece.shape:
            part[field] = piece.part_of(value)
        else:
            part[field] = value.clone() if isinstance(value, torch.Tensor) else value
    return part


def _name_in(names: dict[int, str], parameter: torch.Tensor) -> str:
    if id(parameter) in names:
        return names[id(parameter)]
    raise error(f"the optimizer has a parameter of shape {list(parameter.shape)} that the model has not: make the "
                "optimizer of this model's parameters", "invalid_argument")
