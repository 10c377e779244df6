"""What a training loop can go back to: its last commit, in the memory of every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bimetal.horovod.core import membership, world
from bimetal.horovod.core.objects import broadcast_object
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.core.submit import submit, wait


class HostsUpdatedInterrupt(Exception):
    """Raised on all ranks at once where processes wait to be taken in; ``hvd.elastic.run`` catches it.

    Attributes:
        skip_sync: whether the ranks' states are equal already.
    """

    def __init__(self, skip_sync: bool = False):
        super().__init__("processes wait to be taken in")
        self.skip_sync = skip_sync


class State:
    """What derived classes keep, save, restore and spread over the ranks."""

    def __init__(self, **kwargs: Any):
        del kwargs
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """To be called after the world has been formed anew: for learning rates that depend on size(), say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by ``hvd.elastic.run`` when there is a new world."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves, and lets processes that wait join in. Collective.

        What is lost with a rank is what has been done since the last commit. The more often, the less, and the more
        time it takes: it copies everything the state keeps.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if any of them sees processes that wait. Collective."""
        mine = torch.tensor([int(membership.activate().newcomers_wait())])
        wait(submit("allreduce", "elastic.newcomers", [mine], lambda _: None, op=ReduceOp.Max))
        if mine.item():
            raise HostsUpdatedInterrupt()

    def save(self) -> None:
        """Keeps a copy of everything, in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks what rank 0 has, and saves it. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """For derived classes: there is a new world."""


class ObjectState(State):
    """Values as attributes: ``ObjectState(epoch=0, batch=0).epoch``.

    Args:
        bcast_object, get_rank: of Horovod's signature; None is what Bimetal has.
        kwargs: attributes and their first values: plain data (see broadcast_object).
    """

    def __init__(self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None,
                 **kwargs: Any):
        super().__init__()
        self._bcast_object = bcast_object or broadcast_object
        self._get_rank = get_rank or (lambda: world.current().rank)
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = copy.deepcopy(kwargs)

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        if self._names:
            current = {name: getattr(self, name) for name in self._names}
            for name, value in self._bcast_object(current, root_rank=0, name="elastic.state").items():
                setattr(self, name, value)
        ObjectState.save(self)
