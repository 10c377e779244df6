"""The members of the world, for jobs that outlive the loss of ranks: those of bimetal.elastic, which agree on the next
world.

They find each other without the store of the first one. In that store, for as long as there is one, a process that is started in
a lost rank's place finds their doors.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from bimetal._errors import Error
from bimetal.elastic.members import Epoch, Members
from bimetal.library.meeting import server_of
from bimetal.horovod.core import world

_SECONDS_TO_CONNECT = 30.0
_JOB = "a script of Horovod's"
_PLACE = "elastic"  # the key of where to come in


class Membership:
    """This process's part in an elastic job. For one thread."""

    def __init__(self) -> None:
        store = world.meeting().store
        self._members = Members(server_of(store), _JOB, least=int(os.environ.get("BIMETAL_ELASTIC") or 1), patience=_elastic_seconds(), timeout=world.operation_seconds())
        os.environ["BIMETAL_ADDRESS"] = self._members.address  # where later worlds listen, whose store is no server of torch's
        self._first = 0  # the number of the first world that is elastic

    def found(self) -> None:
        """The members of the present world. Collective."""
        here = world.current()
        self._first = here.generation
        self._tell(self._members.found(dist.PrefixStore(f"elastic/{here.generation}", world.meeting().store), here.rank, here.size))

    def come_in(self, place: dict[str, Any]) -> None:
        """For a newcomer: until the running job forms a world with it."""
        self._first = place["first"]
        self._form(lambda: self._members.join(",".join(place["doors"])))

    def stop(self) -> None:
        self._members.close()

    def newcomers_wait(self) -> bool:
        """Whether processes have come since the world was formed. To be asked on all ranks."""
        return self._members.somebody_waits()

    def form_anew(self) -> None:
        """Leaves the current world and forms one of all members that live, newcomers among them.

        Raises:
            bimetal.Error: ``peer_lost`` where too few are there within HOROVOD_ELASTIC_TIMEOUT (600) seconds.
        """
        error = world.current().engine.error
        world.shutdown()
        loss = error if isinstance(error, Error) else None
        self._form(lambda: self._members.next(loss))

    def _form(self, agree: Callable[[], Epoch]) -> None:
        while True:
            epoch = agree()
            try:
                world.enter(self._members.store(epoch), epoch.rank, epoch.size, self._first + epoch.epoch, _SECONDS_TO_CONNECT)
                break
            except Error as error:  # somebody was lost meanwhile
                if error.code not in SURVIVABLE:
                    raise
                loss = error
                agree = lambda: self._members.next(loss)  # noqa: E731
        self._members.settle()
        self._tell(epoch)

    def _tell(self, epoch: Epoch) -> None:
        """Tells processes that come later."""
        if epoch.rank == 0:
            with contextlib.suppress(RuntimeError):  # the store may be gone with the rank that served it
                world.meeting().store.set(_PLACE, json.dumps({"first": self._first, "doors": [one.door for one in epoch.members]}))


# Codes of errors that end a world, but that another world may do without.
SURVIVABLE = ("peer_lost", "aborted", "timeout", "system", "corrupt_data")


def _elastic_seconds() -> float:
    return float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT") or 600)


_membership: Membership | None = None


def activate() -> Membership:
    """This process's membership, from the first call of an elastic function on, which is collective."""
    global _membership
    if _membership is None:
        _membership = Membership()
        atexit.register(deactivate)
        _membership.found()
    return _membership


def come_later() -> None:
    """For a process whose rank has been started once before: joins the running job if that is elastic.

    Raises:
        bimetal.Error: ``invalid_argument`` where the job is not elastic: then two processes have one rank.
    """
    global _membership
    store = world.meeting().store
    rank = world.first_place().rank
    if not store.check([_PLACE]):
        raise Error(f"another process with rank {rank} has started already: give every process a rank of its "
                    f"own, and a new job a store of its own (another MASTER_PORT)", "invalid_argument", rank)
    _membership = Membership()
    atexit.register(deactivate)
    _membership.come_in(json.loads(store.get(_PLACE)))


def deactivate() -> None:
    """Nobody is let in any more; for the end of the process."""
    global _membership
    membership, _membership = _membership, None
    if membership is not None:
        membership.stop()
