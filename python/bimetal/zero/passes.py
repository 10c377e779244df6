"""Tells the C++ core where forward and backward of a module have come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bimetal import _C
from bimetal.zero.tensors import replace_tensors
from bimetal.zero.units import Unit


class Passes:
    """Hooks on a model and, at level 3, on its units.

    Args:
        core: a HookedModel of these units.
        factor: what this rank's loss counts for in the sum over the ranks; asked once for each backward, in it. 0: its
            gradients are none, even where they are not finite.
        before_sums: called in each backward when this rank's gradients are there and others are not waited for yet.
        after_sums: when they are summed.
    """

    def __init__(self, core: _C.HookedModel, model: nn.Module, units: list[Unit], level: int,
                 factor: Callable[[], float], before_sums: Callable[[], None], after_sums: Callable[[], None]):
        self._core, self._level = core, level
        self._factor, self._before_sums, self._after_sums = factor, before_sums, after_sums
        self._in_backward = False
        self._weight = 0.0
        self.reduce = True  # False leaves gradients of level 1 where they are
        self.finished = False  # the step's gradients are summed, and no backward has begun since
        self._rest = level == 3 and units[0].module is None
        self._last = len(units) - 1
        model.register_forward_pre_hook(self._model_begins)
        model.register_forward_hook(self._model_ends)
        for number, unit in enumerate(units if level == 3 else []):
            if unit.module is not None:
                self._watch(number, unit.module)

    def finish(self) -> None:
        """Sums what this step has, once. Collective."""
        if self.finished:
            return
        self._in_backward = False  # one that has failed
        self._core.finish()
        self.finished = True

    def _watch(self, number: int, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return replace_tensors((args, kwargs), lambda tensors: self._core.enter(number, tensors))

        def after(_: nn.Module, __: tuple, output: Any) -> Any:
            return replace_tensors(output, lambda tensors: self._core.leave(number, tensors))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _model_begins(self, _: nn.Module, __: tuple) -> None:
        if self._level == 3:
            self._in_backward = False
        self._core.forward_begins(torch.is_grad_enabled())
        if self._rest:
            self._core.enter(0, [])

    def _model_ends(self, _: nn.Module, __: tuple, output: Any) -> Any:
        if self._rest:
            self._core.leave(self._last, [])
        self._core.forward_ends()
        if not torch.is_grad_enabled():
            return output
        number = self._core.pass_number
        return replace_tensors(output, lambda tensors: list(_Outputs.apply(self, number, *tensors)) if tensors else [])

    def begin_backward(self, number: int) -> float:
        """Of the pass with this number; what its gradients count for."""
        if self._in_backward:
            return self._weight
        self._weight = self._factor()
        self._core.backward_begins(number, self.reduce)
        self._in_backward, self.finished = True, False
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        return self._weight

    def _end_backward(self) -> None:
        self._in_backward = False
        self._before_sums()
        self._core.backward_ends()
        self._after_sums()


class _Outputs(torch.autograd.Function):
    """What the model returns; its backward is where a backward through the model begins."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, number: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.passes, ctx.number = passes, number
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        weight = ctx.passes.begin_backward(ctx.number)
        if weight == 0:
            return None, None, *(None for _ in gradients)
        if weight == 1:
            return None, None, *gradients
        return None, None, *(None if gradient is None else gradient * weight for gradient in gradients)
