"""From a module and its optimizer to shards of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal._together import rank_weights, require_group
from bimetal._torch_check import require_torch_library
from bimetal.balance import BalancedBatchSampler
from bimetal.process_group import core_group
from bimetal.zero.making import make_whole, move_to, part_of, split
from bimetal.zero.optimizer import require_by_element
from bimetal.zero.ownership import require_free
from bimetal.zero.passes import Unit, units_of
from bimetal.zero.sharded import Sharded


def shard(module: nn.Module, optimizer: torch.optim.Optimizer | None = None, level: int = 1, *,
          shards: str | Sequence[float] = "equal", units: Sequence[str | nn.Module] | None = None,
          sampler: BalancedBatchSampler | None = None, tokens: bool = False, group: dist.ProcessGroup | None = None,
          offload_parameters: str = "none", offload_path: str | os.PathLike = "", keep_below: int = 0, bucket_mb: float = 25,
          weigh: Callable[[], float] | None = None) -> Sharded:
    """Cuts a module's training into shards, one for each rank of a process group of Bimetal's. Collective.

    The module and the optimizer stay the objects that they are: the loop's forward, ``backward()``,
    ``optimizer.step()`` and ``zero_grad()`` go on working, and train what one process would. All ranks begin with rank
    0's parameters and buffers. Afterwards the optimizer's parameters are this rank's pieces of the module's.

    Args:
        module: where it is to be computed: it must not be moved any more. It may have been ``made_in_shards``: at level 3
            it then is never whole, below it becomes so. At level 3 its parameters are there only
            while it is called, each unit's within the unit's call.
        optimizer: of ``torch.optim``, one that works element by element (Adam, AdamW, SGD and others), with or without
            states; None: none yet (``Sharded.attach`` takes one later).
        level: 1 optimizer states, 2 and gradients, 3 and parameters.
        shards: the part that each rank keeps: "equal" parts, in proportion to its "memory" or "speed" (of float32
            products, measured now), or to numbers, one for each rank, which may be 0.
        units: at level 3, modules or their names, in the order in which they run: each is gathered before it runs and
            let go after it; it must be called, once in a pass. Not given: the children of the outermost ``ModuleList``
            and ``Sequential``. Parameters outside of all units are there throughout a pass.
        sampler: whose batches are trained on. Each rank's loss is the mean over its samples and counts by their number,
            and one backward ends one batch of it. None: every rank's loss counts alike.
        tokens: with ``sampler``: the loss is the mean over the tokens that ``sampler.count_tokens`` or ``set_tokens``
            has been told before each backward.
        group: None is the default group.
        offload_parameters: at level 3, where this rank keeps its part of them: "none" (on its device), "host", "disk".
        offload_path: the folder for "disk".
        keep_below: at level 3: parameters of fewer elements, of one unit alone, stay whole between passes, too.
        bucket_mb: at levels 1 and 2 about so much travels at once.
        weigh: instead of ``sampler``: what this rank's loss counts for, asked once in each backward.

    Raises:
        bimetal.Error: ``invalid_argument`` and ``unsupported`` for settings that cannot work, ``call_mismatch`` where
            the ranks' modules differ.
    """
    require_torch_library("bimetal.zero.shard()")
    if level not in (1, 2, 3):
        raise error(f"level {level}: 1, 2 or 3 (without shards DDP does the work)", "invalid_argument")
    require_group("shard")
    if offload_parameters != "none" and level < 3:
        raise error("offload_parameters needs level 3: below it every rank holds all parameters", "invalid_argument")
    if optimizer is not None:
        require_by_element(optimizer)
    require_free(module.named_parameters())
    parts = units_of(module, units)
    first = next((tensor for part in parts for _, tensor in part.parameters), None)
    if first is None:
        raise error("the module has no parameter that requires a gradient", "invalid_argument")
    core_ranks = core_group(group)
    weights = rank_weights("shards", shards, ("equal", "memory", "speed"), first.device, group)
    in_parts = _in_parts(module, level, weights, group)
    core = _C.HookedModel(core_ranks, [(part.name, part.parameters, part.buffers) for part in parts], level,
                          weights, int(bucket_mb * 2**20), offload_parameters, os.fspath(offload_path), keep_below,
                          in_parts)
    sharded = Sharded(module, parts, core, level, group, weigh, sampler, tokens)
    if in_parts:
        _move_parts(parts, sharded)
    if optimizer is not None:
        sharded.attach(optimizer)
    return sharded


def _in_parts(module: nn.Module, level: int, weights: list[float], group: dist.ProcessGroup | None) -> bool:
    """Whether the module's parameters are split already; then all that are trained are, and no others. Collective."""
    parameters = list(module.parameters())
    parts = [id(part) for part in map(part_of, parameters) if part is not None]
    if not parts:
        return False
    if len(set(parts)) < len(parts):
        raise error("two parameters of the module share memory without being one: tie them (a.weight = b.weight)",
                    "unsupported")
    make_whole(parameter for parameter in parameters if level < 3 or not parameter.requires_grad)
    if level < 3:
        return False
    for parameter in parameters:
        if parameter.requires_grad:
            split(parameter, weights, group, parameter.device)
    return True


def _move_parts(units: list[Unit], sharded: Sharded) -> None:
    """Gives the pieces their values, one parameter after the other. Collective."""
    trained = {name: parameter for unit in units for name, parameter in unit.parameters}
    for name, parameter in trained.items():
        if parameter.numel() > 0:
            move_to(parameter, (piece for piece in sharded.pieces if piece.name == name))
    sharded.parameters_changed()
