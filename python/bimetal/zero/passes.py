"""For the C++ core: where a module is cut, and how far its forward and backward have come."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bimetal import _C
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
    """The units in the order in which they run. Parameters outside of all units belong to the first and to the last, so
    that they are there throughout."""
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


def replace_tensors(value: Any, change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """The same value, in which the tensors that need a gradient are those that ``change`` makes of them.

    Looks into tuples, lists, dicts and dataclasses (Hugging Face's outputs are such). Other objects, as caches of keys
    and values, stay what they are, and are shared.
    """
    found: list[torch.Tensor] = []
    _walk(value, lambda tensor: found.append(tensor) or tensor)
    changed = iter(change(found))  # also of none
    return _walk(value, lambda _: next(changed)) if found else value


def _walk(value: Any, put: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return put(value) if value.requires_grad else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _walk(getattr(value, field.name), put) for field in dataclasses.fields(value)
                  if field.init}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        items = [_walk(item, put) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is list:
        return [_walk(item, put) for item in value]
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _walk(item, put)) for key, item in value.items())
    return value


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
        """The amounts to add to a parameter's gradient; None: these."""
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
    """The outputs of the model or a unit; its backward is where the outermost backward through it begins."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, number: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.passes, ctx.number = passes, number
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.passes.reaches_outputs(ctx.number)
        return None, None, *gradients
