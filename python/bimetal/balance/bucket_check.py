"""Whether DDP's buckets have the gradients of all trained parameters: others would stay each rank's own."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bimetal._errors import error
from bimetal.balance.step_check import ddp_with

_FROZEN = ("parameter {} requires a gradient, but it was frozen, or not there, when the model was given to {}, and its gradient would "
           "stay this rank's own: unfreeze what is to be trained before, or make it anew")


class BucketCheck:
    """For a hook of DDP's, which sees the buckets of a backward one after the other."""

    def __init__(self) -> None:
        self._reducer: Any = None  # a weak reference to the DDP whose buckets come
        self._epoch = -1  # in which it was found
        self._nobodys: tuple[int, Any] | None = None  # an epoch, and a parameter (a weak reference) that no DDP had in it
        self._there: set[int] = set()

    def __call__(self, bucket: dist.GradBucket, epoch: int) -> None:
        """Args: epoch: another number where another model may have come.

        Raises:
            bimetal.Error: ``unsupported`` for parameters in no bucket, and for a second model's buckets.
        """
        parameters = bucket.parameters()
        if bucket.index() == 0:
            self._there.clear()
            self._find(parameters, epoch)
        self._there.update(map(id, parameters))
        reducer = self._reducer() if self._reducer is not None else None
        if reducer is not None and bucket.is_last():
            require_all(reducer.module, self._there, "DistributedDataParallel", reducer.parameters_to_ignore)

    def _find(self, parameters: list[torch.Tensor], epoch: int) -> None:
        known = self._reducer() if self._reducer is not None else None
        if known is not None and _has(known, parameters):
            return
        if known is not None and epoch == self._epoch:
            raise error("two models that DistributedDataParallel wraps exchange their gradients by the hook of one BalancedBatchSampler, "
                        "whose batch ends with the first: train both as children of one module, wrapped once", "unsupported")
        if self._nobodys is not None and self._nobodys[0] == epoch and self._nobodys[1]() is parameters[0]:
            return
        found = ddp_with(lambda one: _has(one, parameters))
        self._nobodys = None if found is not None else (epoch, weakref.ref(parameters[0]))
        self._reducer, self._epoch = (None if found is None else weakref.ref(found)), epoch


def require_all(model: nn.Module, there: set[int], where: str, ignored: Iterable[str] = ()) -> None:
    """bimetal.Error ``unsupported`` for a parameter that is trained and not among those `there`, by their ids.

    Args:
        where: the class that was given the model, for the message.
        ignored: names of those that are nobody's business.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in there and name not in ignored:
            raise error(_FROZEN.format(name, where), "unsupported")


def _has(reducer: DistributedDataParallel, parameters: list[torch.Tensor]) -> bool:
    return any(parameters[0] is parameter for parameter in reducer.module.parameters())
