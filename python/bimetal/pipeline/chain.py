"""Finds a module's chain of blocks and the parts before and behind it, and measures each unit on this rank's device."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from bimetal._errors import error
from bimetal._synchronize import synchronize

_ADVICE = ("name the ModuleList or Sequential whose children the module's forward calls one after the other, each with what "
           "the one before has returned (blocks=\"transformer.h\"), or write the module so")


@dataclasses.dataclass
class Unit:
    """A part that is never cut: a block, or everything before or behind the blocks."""

    name: str
    modules: list[nn.Module]

    def tensors(self) -> Iterator[torch.Tensor]:
        for module in self.modules:
            yield from module.parameters()
            yield from module.buffers()


@dataclasses.dataclass
class Piece:
    """Consecutive units: blocks [begin, end), and the parts before and behind."""

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
    """Among the outermost lists, the one with the most parameters."""
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


_SECONDS = 0.8  # in which a device that is granted a part of a processor has used that up


def unit_seconds(chain: Chain, loss_of: Callable[[], torch.Tensor]) -> list[float]:
    """Forward and backward of each unit of the whole module: means over passes. The gradients that they leave are
    removed.

    Args:
        loss_of: calls the module; its backward is measured, too.
    """
    device = next(chain.module.parameters()).device
    clock = _Clock(chain, device)
    kept = [(parameter, parameter.grad) for parameter in chain.module.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[]):
            clock.measure(loss_of)  # kernels are chosen, memory is fetched
            total, passes, began = [0.0] * len(chain.units), 0, time.perf_counter()
            while passes == 0 or time.perf_counter() - began < _SECONDS:
                total = [a + b for a, b in zip(total, clock.measure(loss_of), strict=True)]
                passes += 1
    finally:
        clock.remove()
        for parameter, gradient in kept:
            parameter.grad = gradient
    return [max(seconds / passes, 1e-9) for seconds in total]


class _Clock:
    """When blocks are called, and when the gradients of the activations between them arrive."""

    def __init__(self, chain: Chain, device: torch.device):
        self._chain, self._device = chain, device
        self._called: list[float] = []  # each block, and the end of the last one
        self._arrived: dict[int, float] = {}  # of the input of each block, and of the last one's output
        self._hooks = [block.register_forward_pre_hook(self._block_begins, with_kwargs=True) for block in chain.blocks]
        self._hooks.append(chain.blocks[-1].register_forward_hook(self._last_ends))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def measure(self, loss_of: Callable[[], torch.Tensor]) -> list[float]:
        blocks, units = len(self._chain.blocks), len(self._chain.units)
        self._called, self._arrived = [], {}
        began = self._now()
        loss = loss_of()
        ended, called = self._now(), self._called[:blocks + 1]
        loss.backward()
        done = self._now()
        if len(called) <= blocks:  # the forward leaves blocks out
            return [(done - began) / units] * units
        behind = self._arrived.get(blocks, ended)
        seconds = [called[0] - began]
        for block in reversed(range(blocks)):
            missing = done if block == 0 and not self._chain.first else behind
            arrived = self._arrived.get(block, missing)
            seconds.insert(1, called[block + 1] - called[block] + arrived - behind)
            behind = arrived
        seconds[0] += done - behind
        seconds.append(ended - called[blocks] + self._arrived.get(blocks, ended) - ended)
        return seconds[0 if self._chain.first else 1:len(seconds) if self._chain.last else -1]

    def _block_begins(self, _: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self._called.append(self._now())
        self._note(len(self._called) - 1, args[0] if args else next(iter(kwargs.values()), None))

    def _last_ends(self, _: torch.nn.Module, __: tuple, output: Any) -> None:
        self._called.append(self._now())
        self._note(len(self._chain.blocks), output[0] if isinstance(output, (tuple, list)) else output)

    def _note(self, number: int, value: Any) -> None:
        def arrive(_: torch.Tensor) -> None:
            self._arrived.setdefault(number, self._now())

        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.register_hook(arrive)

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()
