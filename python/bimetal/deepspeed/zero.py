"""``deepspeed.zero``: what scripts for stage 3 put around making and changing a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal import zero
from bimetal._errors import error
from bimetal.deepspeed.initialize import init_distributed
from bimetal.zero.making import part_of
from bimetal.zero.sharded import Sharded


def Init(module: nn.Module | None = None, data_parallel_group: dist.ProcessGroup | None = None,  # noqa: N802
         *_: Any, enabled: bool = True, shards: str | Sequence[float] = "equal",
         **__: Any) -> contextlib.AbstractContextManager[None]:
    """To be entered. A model made within is split among the ranks parameter by parameter, as
    ``bimetal.zero.made_in_shards`` does: each keeps its part, and ``initialize`` at stage 3 takes these. Collective.

    Args:
        module: a module that is there already is not taken: only modules made within are split.
        data_parallel_group: None is the default group, which is made where a launcher has started this process.
        enabled: False: nothing happens.
        shards: each rank's part, as ``initialize``'s; they need not be the same.

    DeepSpeed's other arguments (``config_dict_or_path``, ``remote_device``, ``dtype`` …) have no effect. Below stage 3
    ``initialize`` makes the model whole again.

    Raises:
        bimetal.Error: ``invalid_argument`` without a process group, ``unsupported`` for a module.
    """
    if module is not None:
        raise error("zero.Init(module=…) has come too late: make the module within `with zero.Init():`", "unsupported")
    if not enabled:
        return contextlib.nullcontext()
    init_distributed()
    return zero.made_in_shards(shards, data_parallel_group)


@contextlib.contextmanager
def GatheredParameters(params: torch.Tensor | Iterable[torch.Tensor],  # noqa: N802
                       modifier_rank: int | None = None, fwd_module: Any = None,
                       enabled: bool = True) -> Iterator[None]:
    """These parameters of an engine, or made within ``Init``, are there within. Collective.

    Args:
        params: one or several, of one model. Those that are not in shards are there anyway.
        modifier_rank: its changes are everybody's afterwards; None: they are lost at stage 3.
        fwd_module: ignored.
        enabled: False: nothing happens.
    """
    del fwd_module
    listed = [params] if isinstance(params, torch.Tensor) else list(params)
    owners = {id(owner): owner for owner in map(Sharded.of, listed) if owner is not None}
    split = [parameter for parameter in listed if part_of(parameter) is not None]
    if not enabled or not (owners or split):
        yield
        return
    if len(owners) + bool(split) > 1:
        raise error("GatheredParameters of several models: take one block for each", "invalid_argument")
    if split:
        with zero.gathered(split, modifier_rank):
            yield
        return
    (owner,) = owners.values()
    names = dict.fromkeys(owner.name_of(parameter) for parameter in listed if Sharded.of(parameter) is owner)
    with owner.whole(modifier_rank, list(names)):
        yield
