"""Where a module is cut: what is gathered before it runs, and let go after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from bimetal._errors import error

Named = list[tuple[str, torch.Tensor]]


@dataclasses.dataclass
class Unit:
    """A module of the model that runs as a whole; None is the model without its other units."""

    name: str
    module: nn.Module | None
    parameters: Named  # trained ones, by their first name in the model
    buffers: Named


def units_of(model: nn.Module, names: Sequence[str | nn.Module] | None) -> list[Unit]:
    """The units in the order in which they run. What lies in none of them is the first one's and the last one's, so
    that it is there throughout."""
    paths = {id(module): path for path, module in model.named_modules()}
    modules = list(_in_lists(model)) if names is None else [_named(model, paths, name) for name in names]
    firsts: dict[int, str] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        firsts.setdefault(id(parameter), path)
    units = [_unit(paths[id(module)], module, firsts) for module in modules]
    units = [unit for unit in units if unit.parameters]
    _require_apart(units)
    inside = {id(tensor) for unit in units for _, tensor in unit.parameters}
    rest = [(path, parameter) for path, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in inside]
    buffers = list(model.named_buffers()) + [(path, parameter) for path, parameter in model.named_parameters()
                                             if not parameter.requires_grad]
    if units and not rest:
        units[0].buffers = buffers
        return units
    first, last = (Unit("the model", None, rest, held) for held in (buffers, []))
    return [first, *units, last] if units else [first]


def _in_lists(module: nn.Module) -> Iterator[nn.Module]:
    """The children of its outermost lists."""
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 0:
        seen: set[int] = set()
        yield from (child for child in module if not (id(child) in seen or seen.add(id(child))))
        return
    for child in module.children():
        yield from _in_lists(child)


def _named(model: nn.Module, paths: dict[int, str], name: str | nn.Module) -> nn.Module:
    if isinstance(name, nn.Module):
        if id(name) in paths:
            return name
        raise error(f"units: this {type(name).__name__} is no part of the model", "invalid_argument")
    try:
        return model.get_submodule(name)
    except AttributeError as bad:
        raise error(f"units: the model has no module '{name}'", "invalid_argument") from bad


def _unit(path: str, module: nn.Module, firsts: dict[int, str]) -> Unit:
    trained = [(firsts[id(parameter)], parameter) for parameter in module.parameters() if parameter.requires_grad]
    return Unit(path or "the model", module, trained, [])


def _require_apart(units: list[Unit]) -> None:
    for unit in units:
        inner = {id(module) for module in unit.module.modules()} - {id(unit.module)}
        for other in units:
            if id(other.module) in inner:
                raise error(f"units: {other.name} lies within {unit.name}; name one of them", "invalid_argument")
