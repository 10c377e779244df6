"""What of a module is a chain of blocks, and what lies before and behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import nn

from bimetal._errors import error

_ADVICE = ("name the ModuleList or Sequential whose children the module's forward calls one after the other, each with what "
           "the one before has returned (blocks=\"transformer.h\"), or write the module so")


@dataclasses.dataclass
class Unit:
    """What is never cut: a block, or all that lies before or behind the blocks."""

    name: str
    modules: list[nn.Module]

    def tensors(self) -> Iterator[torch.Tensor]:
        for module in self.modules:
            yield from module.parameters()
            yield from module.buffers()


@dataclasses.dataclass
class Piece:
    """Consecutive units: blocks [begin, end), and what lies before and behind."""

    begin: int
    end: int
    first: bool  # it is where the model begins
    last: bool  # it is where the model ends


class Chain:
    """A module's blocks, with the modules that have parameters beside them.

    Attributes: blocks; container, the list that has them, and path, its name; first and last, the modules before and
    behind it by name, in the order in which the module has them; units.
    """

    def __init__(self, module: nn.Module, blocks: str | None = None):
        self.module = module
        self.path, self.container = _named_list(module, blocks) if blocks is not None else _largest_list(module)
        self.blocks = list(self.container)
        if len({id(block) for block in self.blocks}) < len(self.blocks):
            raise error(f"{self.path or 'the module'} has a block twice, which cannot be on two stages: {_ADVICE}",
                        "unsupported")
        self.first, self.last = _beside(module, self.path)
        prefix = f"{self.path}." if self.path else ""
        names = [f"{prefix}{name}" for name in self.container._modules]
        self.units = ([Unit(", ".join(self.first), list(self.first.values()))] if self.first else []) + \
            [Unit(name, [block]) for name, block in zip(names, self.blocks, strict=True)] + \
            ([Unit(", ".join(self.last), list(self.last.values()))] if self.last else [])

    def piece(self, begins: list[int], number: int) -> Piece:
        """Piece `number` of those that begin with the units `begins`."""
        begin = begins[number]
        end = begins[number + 1] if number + 1 < len(begins) else len(self.units)
        before = 1 if self.first else 0
        return Piece(max(0, begin - before), min(len(self.blocks), end - before), begin == 0, end == len(self.units))


def _named_list(module: nn.Module, name: str) -> tuple[str, nn.Module]:
    try:
        found = module.get_submodule(name)
    except AttributeError as bad:
        raise error(f"blocks: the module has no '{name}': {_ADVICE}", "invalid_argument") from bad
    if not isinstance(found, (nn.ModuleList, nn.Sequential)) or len(found) == 0:
        raise error(f"blocks: {name} is a {type(found).__name__}: {_ADVICE}", "invalid_argument")
    return name, found


def _largest_list(module: nn.Module) -> tuple[str, nn.Module]:
    """Of the outermost lists the one with the most parameters."""
    lists = [(sum(parameter.numel() for parameter in found.parameters()), path, found)
             for path, found in _outermost(module, "")]
    lists = [found for found in lists if found[0] > 0]
    if not lists:
        raise error(f"{type(module).__name__} has no chain of blocks to be cut between: {_ADVICE}", "invalid_argument")
    _, path, found = max(lists, key=lambda one: one[0])
    return path, found


def _outermost(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 0:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _outermost(child, f"{path}.{name}" if path else name)


def _beside(module: nn.Module, path: str) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The modules with parameters that stand before and behind the way to `path`."""
    first: dict[str, nn.Module] = {}
    last: dict[str, nn.Module] = {}
    behind: list[dict[str, nn.Module]] = []
    prefix = ""
    for step in path.split(".") if path else []:
        side: dict[str, nn.Module] = first
        later: dict[str, nn.Module] = {}
        for name, child in module.named_children():
            if name == step:
                side = later
            elif any(True for _ in child.parameters()):
                side[prefix + name] = child
        behind.append(later)
        module, prefix = getattr(module, step), f"{prefix}{step}."
    for later in reversed(behind):  # the innermost run first
        last.update(later)
    return first, last
