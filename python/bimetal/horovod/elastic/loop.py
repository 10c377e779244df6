"""The loop around a training function that begins it anew when ranks are lost or come."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from bimetal._errors import Error
from bimetal.horovod.core import membership, world
from bimetal.horovod.elastic.state import HostsUpdatedInterrupt, State

_log = logging.getLogger("bimetal.horovod")

# Of what ends a world: those that another world may do without.
_SURVIVABLE = ("peer_lost", "aborted", "timeout", "system", "corrupt_data")


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
    return error if isinstance(error, Error) and error.code in _SURVIVABLE else None
