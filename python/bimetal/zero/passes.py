"""Tells the C++ core where forward and backward of a module have come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal.zero.tensors import replace_tensors
from bimetal.zero.units import Unit


class Passes:
    """Hooks on a model, on its parameters and, at level 3, on its units.

    A pass begins with the first gradient that comes to one of the parameters, from whatever has been computed with them, and
    each gradient is weighed as it comes, so that the graph, and what else is taken from it, is as on one process.

    Args:
        core: a HookedModel of these units.
        factor: what this rank's loss counts for in the sum over the ranks; asked once for each pass, in it. 0: its
            gradients are none, even where they are not finite.
        begun: called before each pass that adds to the step's gradients.
        before_sums: when this rank's gradients are there and others are not waited for yet.
        after_sums: when they are summed.
    """

    def __init__(self, core: _C.HookedModel, model: nn.Module, units: list[Unit], level: int, factor: Callable[[], float],
                 begun: Callable[[], None], before_sums: Callable[[], None], after_sums: Callable[[], None]):
        self._core, self._level = core, level
        self._factor, self._begun, self._before_sums, self._after_sums = factor, begun, before_sums, after_sums
        self.in_backward = False  # the core's, of the pass under way
        self._end_is_queued = False  # behind the outermost of nested backward calls
        self._weight: float | None = None  # of the pass under way; None: no gradient has come yet
        self.reduce = True  # False leaves gradients of level 1 where they are
        self.held_back = False  # there are such
        self.finished = False  # the step's gradients are summed, and no backward has begun since
        self._rest = level == 3 and units[0].module is None
        self._last = len(units) - 1
        model.register_forward_pre_hook(self._model_begins)
        model.register_forward_hook(self._model_ends)
        for number, unit in enumerate(units if level == 3 else []):
            if unit.module is not None:
                self._watch(number, unit.module)
        parameters = {id(parameter): parameter for unit in units for _, parameter in unit.parameters}
        self._accumulators = hook_gradients(parameters.values(), self._weigh)

    def finish(self) -> None:
        """Sums what this step has, once. Collective."""
        if self.finished:
            return
        self.in_backward = self._end_is_queued = False  # one that has failed
        self._weight = None
        self.held_back = False
        self._core.finish()
        self.finished = True

    def _watch(self, number: int, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return replace_tensors((args, kwargs), lambda tensors: self._core.enter(number, tensors))

        def after(_: nn.Module, __: tuple, output: Any) -> Any:
            return replace_tensors(output, lambda tensors: self._marked(self._core.leave(number, tensors)))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _model_begins(self, _: nn.Module, __: tuple) -> None:
        if self._level == 3:
            self.in_backward = self._end_is_queued = False
            self._weight = None
            if torch.is_grad_enabled():
                self._begun()
        self._core.forward_begins(torch.is_grad_enabled())
        if self._rest:
            self._core.enter(0, [])

    def _model_ends(self, _: nn.Module, __: tuple, output: Any) -> Any:
        if self._rest:
            self._core.leave(self._last, [])
        self._core.forward_ends()
        return replace_tensors(output, self._marked)

    def _marked(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if not (tensors and torch.is_grad_enabled()):
            return tensors
        return list(_Outputs.apply(self, self._core.pass_number, *tensors))

    def reaches_outputs(self, number: int) -> None:
        """A backward has come to what the pass with this number has returned: it may be autograd.grad, of inputs."""
        self._queue_end()
        if self._level == 3:  # whose parameters come and go with it
            self._begin(number)

    def _weigh(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
        """What is to be added to a parameter's gradient; None: these."""
        if torch.is_grad_enabled():
            raise error("backward(create_graph=True) would leave gradients in parameters that are in shards: take "
                        "torch.autograd.grad(…, create_graph=True), and backward() of the loss made of it", "unsupported")
        if self._weight is None:
            self._queue_end()
            self._begin(self._core.pass_number)
            self._weight = self._factor()
        if self._weight == 1:
            return None
        return tuple(None if gradient is None or self._weight == 0 else gradient * self._weight for gradient in gradients)

    def _begin(self, number: int) -> None:
        if self.in_backward:
            return
        self._begun()
        self._core.backward_begins(number, self.reduce)
        self.in_backward, self.finished = True, False
        self.held_back = self._level == 1 and not self.reduce

    def _queue_end(self) -> None:
        if not self._end_is_queued:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
            self._end_is_queued = True

    def _end_backward(self) -> None:
        begun, counts = self.in_backward, self._weight is not None
        self.in_backward = self._end_is_queued = False
        self._weight = None
        if not begun:
            return
        if counts:
            self._before_sums()
        self._core.backward_ends()
        if counts:
            self._after_sums()


def hook_gradients(parameters: Iterable[torch.Tensor], hook: Callable[[tuple], tuple | None]) -> list[Any]:
    """Has the hook called with each gradient that is to be added to one of the parameters' own, and adds what it returns.
    torch.autograd.grad does not call it. Returns what must be kept for it."""
    nodes = [torch.autograd.graph.get_gradient_edge(parameter).node for parameter in parameters]
    for node in nodes:
        node.register_prehook(hook)
    return nodes


class _Outputs(torch.autograd.Function):
    """What the model or a unit returns; its backward is where the outermost backward through it begins."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, number: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.passes, ctx.number = passes, number
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.passes.reaches_outputs(ctx.number)
        return None, None, *gradients
