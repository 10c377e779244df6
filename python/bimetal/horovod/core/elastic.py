"""Training that outlives the loss of ranks, whatever the framework: what torch.elastic and the forms for TensorFlow and Keras
are made of."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bimetal._errors import Error
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
    """The state that derived classes keep, save, restore and spread over the ranks."""

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

        The loss of a rank loses the work since the last commit. Frequent commits lose less, and take more time: each
        copies everything that the state keeps.
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
        """Goes back to the last saved state."""
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


_log = logging.getLogger("bimetal.horovod")


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates ``func(state, …)`` so that it goes on when ranks are lost or come::

        @hvd.elastic.run
        def train(state):
            for state.epoch in range(state.epoch, epochs):
                …
                state.commit()

        train(hvd.elastic.TorchState(model, optimizer, epoch=0))

    When a rank is lost, the others restore their last commit, form a smaller world, take over rank 0's state and
    call ``func`` again. When processes wait to be taken in, they are at the next commit() or check_host_updates().

    Returns:
        A function that returns what ``func`` does. It raises what ``func`` raises that has nothing to do with lost
        ranks, and bimetal.Error where no world can be formed any more (docs/horovod.md says when).
    """
    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        members = membership.activate()
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt as update:
                skip_sync = False if update.skip_sync is None else update.skip_sync
                _log.info("processes have come: forming a new world")
            except Exception as error:
                cause = _what_ended_the_world()
                if cause is None:
                    raise
                _log.warning("%s; going back to the last commit", cause)
                error.__traceback__ = None  # frames of the failed call would keep its tensors alive
                state.restore()
                skip_sync = False
            members.form_anew()
            _log.warning("going on as rank %d of %d", world.current().rank, world.current().size)
            state.on_reset()
    return wrapper


def _what_ended_the_world() -> Error | None:
    """Why the engine has ended, if a new world may help. The exception itself need not say so: frameworks wrap it."""
    error = world.current().engine.error if world.is_initialized() else None
    return error if isinstance(error, Error) and error.code in membership.SURVIVABLE else None
