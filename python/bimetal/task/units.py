"""A module as units: parts that are called one after the other, with their tensors by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from bimetal.task.dropout import Dropout

Named = list[tuple[str, torch.Tensor]]


@dataclasses.dataclass
class HostedUnit:
    """A unit as src/bimetal/python_host reads it."""

    name: str
    parameters: Named
    buffers: Named  # and parameters that are not trained
    forward: Callable[[tuple], tuple]
    train: Callable[[bool], Any]


def units_of(model: nn.Module, cut: Callable[[nn.Module], Sequence[nn.Module]] | None) -> list[HostedUnit]:
    """The units of a model that ``cut`` cuts; tensors have the model's names for them, in every unit alike."""
    for number, dropout in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        dropout.layer = number
    parts = _parts(model, cut)
    parameters = _names(model.named_parameters(remove_duplicate=False))
    buffers = _names(model.named_buffers(remove_duplicate=False))
    paths = {id(module): path for path, module in model.named_modules()}
    units = []
    for number, part in enumerate(parts):
        name = paths.get(id(part)) or ("model" if part is model else f"unit {number}")
        units.append(_unit(name, part, parameters, buffers))
    _require_all(units, parameters)
    return units


def as_tuple(values: Any, what: str) -> tuple:
    """Tensors as a tuple, whether one was given or several."""
    if isinstance(values, torch.Tensor):
        return (values,)
    if isinstance(values, (tuple, list)) and all(isinstance(value, torch.Tensor) for value in values):
        return tuple(values)
    raise TypeError(f"{what} is {_kind(values)}; it has to be a tensor or a tuple of tensors")


def from_tuple(values: tuple) -> Any:
    """What the user's functions get: a single tensor as such."""
    return values[0] if len(values) == 1 else values


def _parts(model: nn.Module, cut) -> Sequence[nn.Module]:
    if cut is not None:
        parts = list(cut(model))
        if not parts or not all(isinstance(part, nn.Module) for part in parts):
            raise TypeError("units() has to return modules, those that are called one after the other")
        return parts
    return list(model) if isinstance(model, nn.Sequential) and len(model) > 0 else [model]


def _unit(name: str, part: nn.Module, parameters: dict, buffers: dict) -> HostedUnit:
    def forward(inputs: tuple) -> tuple:
        return as_tuple(part(*inputs), f"what {name} returns")

    trained, kept = [], []
    for path, parameter in part.named_parameters():
        named = (parameters.get(id(parameter), f"{name}.{path}"), parameter)
        (trained if parameter.requires_grad else kept).append(named)
    kept += [(buffers.get(id(buffer), f"{name}.{path}"), buffer) for path, buffer in part.named_buffers()]
    return HostedUnit(name, trained, kept, forward, part.train)


def _names(named) -> dict[int, str]:
    """Each tensor's first name."""
    names: dict[int, str] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), name)
    return names


def _require_all(units: list[HostedUnit], parameters: dict[int, str]) -> None:
    listed = {id(tensor) for unit in units for _, tensor in unit.parameters + unit.buffers}
    missing = sorted(name for tensor, name in parameters.items() if tensor not in listed)
    if missing:
        raise ValueError(f"units() leaves parameters of the model out: {', '.join(missing)}")


def _kind(values: Any) -> str:
    if isinstance(values, (tuple, list)):
        return f"a {type(values).__name__} of {', '.join(sorted({type(value).__name__ for value in values}))}"
    return f"a {type(values).__name__}"
