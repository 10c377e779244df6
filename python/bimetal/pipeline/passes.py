"""Lets a module's own forward run on a stage that has only some of its blocks.

On every stage the forward does all work beside calling blocks (masks, positions, embeddings of these). Blocks of
earlier stages are passed over; the last of them returns what the stage before has sent. The forward ends when it calls
the first block of a later stage. Modules before and behind the blocks that are elsewhere return numbers of the right
shape, all of them NaN, so that it shows if any are used.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import nn

from bimetal._errors import error
from bimetal.pipeline.chain import Chain, Piece

_AS_A_CHAIN = ("a module can be cut where its forward gives to each block, as the first argument, just what the one "
               "before has returned, and uses nothing else of it")


class _Stop(Exception):
    """The forward has come to where the next stage goes on."""

    def __init__(self, value: torch.Tensor):
        super().__init__("the rest of this module is on other stages")
        self.value = value


@dataclasses.dataclass
class _Run:
    """A forward through one piece."""

    piece: Piece
    received: torch.Tensor | None
    gradients: bool  # are wanted
    begun: bool = False  # the received values have been handed to the forward
    output: torch.Tensor | None = None  # of the last own block
    version: int = 0


class Passes:
    """Forwards through the pieces that this stage has. From one thread.

    Args:
        own: which blocks are here.
        first, last: whether what lies before and behind them is.

    Attributes: values: how many a block returns, 0 for a tensor alone. The stage before tells a stage that has run none
    yet.
    """

    def __init__(self, chain: Chain, own: set[int], first: bool, last: bool):
        self._chain = chain
        self._run: _Run | None = None
        self.values = 0
        self._checked: set[int] = set()  # pieces, by their first block, whose arguments have been looked at
        self._own = {index: chain.blocks[index].forward for index in sorted(own)}
        for index, block in enumerate(chain.blocks):
            if index in own:
                block.forward = functools.wraps(block.forward)(functools.partial(self._call, index))
            else:
                chain.container._modules[list(chain.container._modules)[index]] = _Elsewhere(self, index, block)
        for side, here, modules in (("first", first, chain.first), ("last", last, chain.last)):
            for name, module in ({} if here else modules).items():
                _make_hollow(module, functools.partial(self._hollow, side, name))
        chain.blocks = [block if index in own else None for index, block in enumerate(chain.blocks)]

    def forward(self, piece: Piece, received: torch.Tensor | None, call: Callable[[], Any]) -> Any:
        """The module's result if the piece is its end; otherwise the tensor for the next stage.

        Args:
            received: from the stage before; None where the model begins.
            call: calls the module.
        """
        if received is not None and received.requires_grad:
            received = received.clone()  # blocks may work in place, which a leaf does not allow
        self._run = run = _Run(piece, received, torch.is_grad_enabled())
        try:
            outputs = call()
        except _Stop as stop:
            return stop.value
        finally:
            self._run = None
            self._checked.add(piece.begin)
        if not piece.last or (received is not None and not run.begun):
            raise error(f"the module's forward has not called all of its {len(self._chain.blocks)} blocks: {_AS_A_CHAIN}",
                        "unsupported")
        return outputs

    def _call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        inner, run = self._own[index], self._run
        if run is None:  # computed again for backward
            return inner(*args, **kwargs)
        if index < run.piece.begin:
            return self._pass_over(index, args, kwargs)
        if index >= run.piece.end:
            self._stop(args, kwargs)
        if index == run.piece.begin and run.received is not None:
            args, kwargs = self._enter(run, args, kwargs)
        output = inner(*args, **kwargs)
        run.output = self._first_of(output)
        run.version = run.output._version
        return output

    def _enter(self, run: _Run, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if run.begun and not _same(_argument(args, kwargs), run.received):
            raise error(f"the module computes with what a block has returned before it calls the next: {_AS_A_CHAIN}",
                        "unsupported")
        if not run.begun:  # the piece begins with the first block
            run.begun = True
            if args:
                args = (run.received, *args[1:])
            else:
                kwargs = {**kwargs, next(iter(kwargs)): run.received}
        if run.piece.begin not in self._checked and any(_has_nan(value) for value in (*args[1:], *kwargs.values())
                                                        if value is not run.received):
            raise error(f"blocks get what is computed before them otherwise than by their first argument: {_AS_A_CHAIN}",
                        "unsupported")
        return args, kwargs

    def _pass_over(self, index: int, args: tuple, kwargs: dict) -> Any:
        run = self._run
        if run is None or run.begun or index >= run.piece.begin:
            raise error("this block is on another stage: let what bimetal.pipeline.stages() has returned call the module",
                        "invalid_argument")
        value = _argument(args, kwargs)
        if index == run.piece.begin - 1:
            run.begun, value = True, run.received
        return (value, *[None] * (self.values - 1)) if self.values else value

    def _stop(self, args: tuple, kwargs: dict) -> None:
        run, value = self._run, _argument(args, kwargs)
        if run.output is not None and not (_same(value, run.output) and value._version == run.version):
            raise error(f"the module computes with what a block has returned before it calls the next: {_AS_A_CHAIN}",
                        "unsupported")
        raise _Stop(value)

    def _beyond(self, index: int, args: tuple, kwargs: dict) -> Any:
        """A block that is elsewhere is called."""
        if self._run is not None and index >= self._run.piece.end:
            self._stop(args, kwargs)
        return self._pass_over(index, args, kwargs)

    def _hollow(self, side: str, name: str, inner: Callable, *args: Any, **kwargs: Any) -> Any:
        run = self._run
        if run is not None and side == "last" and run.output is not None:
            raise _Stop(run.output)
        if run is None or side == "last" or run.begun:
            raise error(f"{name} is on another stage: what stands before the blocks has to be called before them, what "
                        "stands behind them after, and all by what bimetal.pipeline.stages() has returned",
                        "invalid_argument" if run is None else "unsupported")
        device = next((value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        with torch.no_grad():
            shapes = inner(*_map(args, _shape_of), **_map(kwargs, _shape_of))
            return _map(shapes, lambda tensor: _no_numbers(tensor, device))

    def _first_of(self, output: Any) -> torch.Tensor:
        """The part of a block's output that the next block gets."""
        if isinstance(output, torch.Tensor):
            self.values = 0
        elif isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor) and \
                not any(isinstance(more, torch.Tensor) and more.requires_grad for more in output[1:]):
            self.values = len(output)
        else:
            raise error(f"a block returns more than one tensor, or none: {_AS_A_CHAIN}", "unsupported")
        first = output if self.values == 0 else output[0]
        if self._run is not None and torch.is_grad_enabled() != self._run.gradients:
            raise error("reentrant checkpointing hides from the next stage what a block returns: use_reentrant=False",
                        "unsupported")
        return first


class _Elsewhere(nn.Module):
    """In the place of a block, whose plain attributes it keeps.

    Attributes: on_another_stage: ``bimetal.tensor`` knows by it that the module is in stages.
    """

    on_another_stage = True

    def __init__(self, passes: Passes, index: int, block: nn.Module):
        super().__init__()
        for name, value in block.__dict__.items():
            if name not in self.__dict__ and name != "forward":
                self.__dict__[name] = value
        self._passes, self._index = passes, index

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._passes._beyond(self._index, args, kwargs)


def _make_hollow(module: nn.Module, call: Callable) -> None:
    module.to("meta")
    module.forward = functools.wraps(module.forward)(functools.partial(call, module.forward))


def _argument(args: tuple, kwargs: dict) -> torch.Tensor:
    value = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(value, torch.Tensor):
        raise error(f"a block's first argument is a {type(value).__name__}, not a tensor: {_AS_A_CHAIN}", "unsupported")
    return value


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.data_ptr() == other.data_ptr() and one.shape == other.shape
                            and one.stride() == other.stride())


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


def _no_numbers(like: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """A tensor of its shape and type, without memory of that size."""
    value = float("nan") if like.is_floating_point() else 0
    return torch.full((), value, dtype=like.dtype, device=device or "cpu").expand(like.shape)


def _has_nan(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and bool(value.isnan().any())
    return isinstance(value, (tuple, list)) and any(_has_nan(item) for item in value)


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [_map(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if not isinstance(value, MutableMapping):
        return value
    changed = copy.copy(value)  # Hugging Face's can be read by attributes, too
    for key, item in value.items():
        changed[key] = _map(item, change)
    return changed
