"""torch's functions that would take this rank's part of a module for all of it: they raise, and name the call to make."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.utils.weak import WeakTensorKeyDictionary

from bimetal._errors import error

_clipped_by = WeakTensorKeyDictionary()  # by parameter: the call that knows the norm over all ranks
_reading = False


def refuse_norms(parameters: Iterable[torch.Tensor], instead: str) -> None:
    """``torch.nn.utils.clip_grad_norm_`` and ``get_total_norm`` raise for gradients of these."""
    _watch_norms()
    for parameter in parameters:
        _clipped_by[parameter] = instead


def refuse_states(modules: Iterable[nn.Module], optimizer: torch.optim.Optimizer | None, kind: str) -> None:
    """``state_dict()`` of these modules, and of the optimizer, raises; so does what calls it, as ``save_pretrained``."""
    for module in modules:
        module.register_state_dict_pre_hook(functools.partial(_refuse_state, "module", f"{kind}.state_dict()"))
    if optimizer is not None:
        optimizer.register_state_dict_pre_hook(functools.partial(_refuse_state, "optimizer", f"{kind}.optimizer_state_dict()"))


@contextlib.contextmanager
def own_states() -> Iterator[None]:
    """Within it a module's ``state_dict()`` is of this rank's part."""
    global _reading
    before, _reading = _reading, True
    try:
        yield
    finally:
        _reading = before


def _refuse_state(what: str, instead: str, *_: Any) -> None:
    if not _reading:
        more = ", and save_pretrained(folder, state_dict=…) takes that" if what == "module" else ""
        raise error(f"the {what}'s state_dict() has this rank's part alone: call {instead} on all ranks, which gives the whole{more}",
                    "unsupported")


@functools.cache
def _watch_norms() -> None:
    """From here on torch looks for them. Scripts may have imported its function before: since torch 2.6 it calls this one."""
    before_26 = not hasattr(clip_grad, "_get_total_norm")
    name, public, argument = ("clip_grad_norm_", "clip_grad_norm_", "parameters") if before_26 else \
        ("_get_total_norm", "get_total_norm", "tensors")
    own: Callable[..., torch.Tensor] = getattr(clip_grad, name)

    @functools.wraps(own)
    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        given, rest = (kwargs.pop(argument), args) if argument in kwargs else (args[0], args[1:])
        tensors = [given] if isinstance(given, torch.Tensor) else list(given)
        known = {id(tensor) for tensor in tensors}
        for parameter, instead in _clipped_by.items():
            if known & {id(parameter), id(parameter.grad)}:
                raise error(f"torch.nn.utils.clip_grad_norm_ would clip by the norm of this rank's part alone: call {instead}",
                            "unsupported")
        return own(tensors, *rest, **kwargs)

    setattr(clip_grad, name, watched)
    setattr(torch.nn.utils, public, watched)
