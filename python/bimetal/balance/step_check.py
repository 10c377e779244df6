"""Whether an optimizer steps before the gradients of its batch have been exchanged: they would be each rank's own.

DDP tells nobody of a backward that exchanges nothing, or only a part: from a loss beside the model's ``forward``, or
with a parameter that was frozen after DDP was made, whose bucket waits for it. So the optimizer's step is checked,
before it changes anything.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from bimetal._errors import error

_EARLY = "optimizer.step() comes before the gradients of this batch have been exchanged, so that each rank would make a step of its own: "
_BESIDE = ("the loss did not come from a call of the model that DDP wraps (but from another method than forward, or from the model "
           "within), or backward ran under no_sync()")
_FROZEN = ("{} frozen since DistributedDataParallel was made, which waits for their gradients: wrap the model anew after freezing, or with "
           "find_unused_parameters=True")


_seen: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def ddp_with(has: Callable[[Any], bool]) -> DistributedDataParallel | None:
    """The first for which `has` is true. Those that nobody has seen are looked for among all objects of the program, which takes a
    tenth of a second: DDP tells a hook nothing of itself."""
    for one in list(_seen):
        if has(one):
            return one
    for thing in gc.get_objects():
        if issubclass(type(thing), DistributedDataParallel):  # isinstance() would wake up proxies
            _seen.add(thing)
            if has(thing):
                return thing
    return None


class _Watched:
    """An optimizer."""

    def __init__(self) -> None:
        self.ddp: weakref.ref[DistributedDataParallel] | None = None  # whose parameters it moves
        self.looked_at = -1  # the number of loops begun when it was looked for
        self.exchanges = 0  # of the sampler, at the last step


_optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Watched] = weakref.WeakKeyDictionary()
_loops = 0  # begun over any sampler: a new model may have come with it
_hooked = False


def loop_begins() -> None:
    """To be told of every loop over a sampler."""
    global _loops, _hooked
    _loops += 1
    if not _hooked:
        register_optimizer_step_pre_hook(_before_step)
        _hooked = True


def _before_step(optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """torch's hook of all optimizers; a closure computes within the step."""
    watched = _optimizers.setdefault(optimizer, _Watched())
    sampler = _sampler_of(optimizer, watched)
    if sampler is None:
        return None
    closure = arguments[1] if len(arguments) > 1 else options.get("closure")
    if closure is None:
        _check(optimizer, watched, sampler)
        return None

    def checked() -> Any:
        result = closure()
        _check(optimizer, watched, sampler)
        return result

    return ((arguments[0], checked, *arguments[2:]), options) if len(arguments) > 1 else (arguments, {**options, "closure": checked})


def _check(optimizer: torch.optim.Optimizer, watched: _Watched, sampler: Any) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if sampler.exchanges == watched.exchanges and any(parameter.grad is not None for parameter in parameters):
        frozen = _frozen_since(watched.ddp() if watched.ddp else None)
        raise error(_EARLY + (_FROZEN.format(frozen) if frozen else _BESIDE), "unsupported")
    watched.exchanges = sampler.exchanges


def _sampler_of(optimizer: torch.optim.Optimizer, watched: _Watched) -> Any:
    """The sampler by whose hook the gradients of the optimizer's parameters are exchanged; None: nobody's."""
    ddp = watched.ddp() if watched.ddp else None
    if ddp is None and watched.looked_at != _loops:
        watched.looked_at = _loops
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        ddp = ddp_with(lambda one: _hook_sampler(one) is not None and any(id(parameter) in mine for parameter in one.parameters()))
        watched.ddp = None if ddp is None else weakref.ref(ddp)
    return None if ddp is None else _hook_sampler(ddp)


def _hook_sampler(ddp: DistributedDataParallel) -> Any:
    """That of its communication hook, whose state is one or has one, as front ends do."""
    for _, state in vars(ddp).get("_comm_hooks", ()):
        sampler = state if hasattr(state, "exchanges") else getattr(state, "sampler", None)
        if hasattr(sampler, "exchanges"):
            return sampler
    return None


def _frozen_since(ddp: DistributedDataParallel | None) -> str:
    """Which parameters have been frozen since DDP was made; empty: none."""
    if ddp is None:
        return ""
    mine = [(name, parameter) for name, parameter in ddp.module.named_parameters() if name not in ddp.parameters_to_ignore]
    frozen = [name for name, parameter in mine if not parameter.requires_grad]
    since = ddp._get_ddp_logging_data().get("num_parameter_tensors", 0) - (len(mine) - len(frozen))
    if since <= 0:
        return ""
    if since < len(frozen):  # among others that were frozen before
        return "parameters were"
    return f"{', '.join(frozen[:3])}{' …' if since > 3 else ''} {'was' if since == 1 else 'were'}"
