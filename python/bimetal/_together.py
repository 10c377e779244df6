"""Shared by loops whose ranks keep parts of a module: texts and norms over the ranks, how large parts are, and torch's
functions that would take a rank's part for all of it."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad
from torch.utils.weak import WeakTensorKeyDictionary

from bimetal import _C
from bimetal._errors import error
from bimetal.process_group import core_group


def require_group(call: str) -> None:
    """bimetal.Error ``invalid_argument`` where there is no process group yet."""
    if not dist.is_initialized():
        raise error(f"{call}() needs a process group: torch.distributed.init_process_group(\"bimetal\")", "invalid_argument")


def require_alike(call: str, told: dict[str, Any], group: dist.ProcessGroup | None) -> None:
    """bimetal.Error ``call_mismatch`` on every rank, which names a rank whose arguments differ from the first rank's,
    for arguments that decide what all ranks do. Collective.

    Args:
        call: as a user knows it, for the message.
        told: the arguments by name; values that JSON has.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    first, *others = map(json.loads, share_text(json.dumps(told, default=int), group))
    for rank, other in zip(ranks[1:], others, strict=True):
        for name, value in first.items():
            if other[name] != value:
                raise error(f"rank {rank} calls {call} with {name} = {other[name]}, rank {ranks[0]} with {value}: give "
                            "all ranks the same", "call_mismatch", rank)


def share_text(text: str, group: dist.ProcessGroup | None) -> list[str]:
    """Every rank's text. Collective. (Objects would be pickled, and a pickle from elsewhere runs what it likes.)"""
    mine = torch.tensor(list(text.encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group=group)
    most = max(int(size) for size in sizes)
    everyone = [torch.zeros(most, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(everyone, torch.nn.functional.pad(mine, (0, most - len(mine))), group=group)
    return [bytes(part[:int(size)].tolist()).decode() for part, size in zip(everyone, sizes, strict=True)]


def rank_weights(name: str, given: str | Sequence[float], kinds: Sequence[str], device: torch.device,
                 group: dist.ProcessGroup | None) -> list[float]:
    """One for each rank, the same on all of them. Collective.

    Args:
        name: what the caller calls them, for messages.
        given: "equal", in proportion to free "memory" or to "speed" (of float32 products, measured now), if these are
            among ``kinds``, or numbers.

    Raises:
        bimetal.Error: ``invalid_argument`` for others.
    """
    ranks = dist.get_world_size(group)
    if isinstance(given, str):
        if given not in kinds:
            raise error(f"{name} \"{given}\": " + "".join(f"\"{kind}\", " for kind in kinds) + "or a number for each rank",
                        "invalid_argument")
        if given == "equal":
            return [1.0] * ranks
        if given == "memory":
            return _C.memory_weights(core_group(group), str(device))
        speeds = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(speeds, torch.tensor([_C.device_speed(str(device))], dtype=torch.float64), group=group)
        known = [float(speed) for speed in speeds]
        return known if min(known) > 0 else [1.0] * ranks
    if len(given) != ranks:
        raise error(f"{name} has {len(given)} numbers for {ranks} ranks: give one for each", "invalid_argument")
    return [float(weight) for weight in given]


def norm_over_ranks(counted: list[torch.Tensor], group: dist.ProcessGroup | None) -> torch.Tensor:
    """The norm of the gradients that all ranks count, the same on every rank. Collective."""
    square = torch.zeros(1, dtype=torch.float64)
    if counted:
        square += torch.stack([part.double().cpu() for part in torch._foreach_norm(counted)]).square().sum()
    dist.all_reduce(square, group=group)
    return square.sqrt()[0]


def clip_over_ranks(gradients: list[torch.Tensor], counted: list[torch.Tensor], max_norm: float,
                    group: dist.ProcessGroup | None) -> torch.Tensor:
    """As ``torch.nn.utils.clip_grad_norm_``, for the gradients of all ranks. Collective.

    Args:
        gradients: this rank's.
        counted: those of them that no other rank counts.

    Returns: the norm before clipping, a float64 scalar and the same on every rank.
    """
    norm = norm_over_ranks(counted, group)
    part = float(max_norm / (norm + 1e-6))
    if not part >= 1 and gradients:  # nor where the norm is NaN, which torch gives to all of them
        torch._foreach_mul_(gradients, part)
    return norm


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
