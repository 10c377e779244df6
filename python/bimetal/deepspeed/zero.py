"""``deepspeed.zero``: what scripts for stage 3 put around making and changing a model."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bimetal._errors import error
from bimetal.zero.sharded import Sharded


@contextlib.contextmanager
def Init(*_: Any, enabled: bool = True, **__: Any) -> Iterator[None]:  # noqa: N802  (DeepSpeed's name)
    """A model made within is whole until ``initialize`` cuts it: every rank needs room for its parameters till then."""
    if enabled:
        warnings.warn("deepspeed.zero.Init has no effect: a model is made whole on each rank, and cut by initialize()",
                      stacklevel=3)
    yield


@contextlib.contextmanager
def GatheredParameters(params: torch.Tensor | Iterable[torch.Tensor],  # noqa: N802
                       modifier_rank: int | None = None, fwd_module: Any = None,
                       enabled: bool = True) -> Iterator[None]:
    """These parameters of an engine are there within. Collective.

    Args:
        params: one or several, of one model. Those that are not in shards are there anyway.
        modifier_rank: its changes are everybody's afterwards; None: they are lost at stage 3.
        fwd_module: ignored.
        enabled: False: nothing happens.
    """
    del fwd_module
    listed = [params] if isinstance(params, torch.Tensor) else list(params)
    owners = {id(owner): owner for owner in map(Sharded.of, listed) if owner is not None}
    if not enabled or not owners:
        yield
        return
    if len(owners) > 1:
        raise error("GatheredParameters of several models: take one block for each", "invalid_argument")
    (owner,) = owners.values()
    names = dict.fromkeys(owner.name_of(parameter) for parameter in listed if Sharded.of(parameter) is owner)
    with owner.whole(modifier_rank, list(names)):
        yield
