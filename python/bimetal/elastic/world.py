"""The process group of each epoch."""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any

import torch.distributed as dist

from bimetal._errors import error
from bimetal.elastic.members import Epoch, Members
from bimetal.library.meeting import server_of
from bimetal.process_group import BACKEND, _backend_of

_TO_CONNECT_S = 30.0  # for those who have just been there
_NAMES_OF_AN_EPOCH = 10_000  # numbers by which torch calls its groups


class World:
    """torch's default group, made anew for each epoch.

    Args:
        timeout: seconds, of its calls.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = datetime.timedelta(seconds=timeout)
        self._hook: Any = None

    def found(self, job: str, **how: Any) -> tuple[Members, Epoch]:
        """The members of the present group, or of the one that the environment names. Collective."""
        if not dist.is_initialized():
            if "RANK" in os.environ:
                dist.init_process_group(BACKEND, timeout=self._timeout)
            else:
                dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1, timeout=self._timeout)
        elif dist.get_backend() != BACKEND:
            raise error(f"the process group is {dist.get_backend()}'s, which does not survive its ranks: leave out init_process_group, or "
                        f"call init_process_group(\"{BACKEND}\")", "unsupported")
        store = dist.distributed_c10d._get_default_store()
        members = Members(server_of(store), job, **how)
        life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a launcher that starts all ranks again may keep its store
        epoch = members.found(dist.PrefixStore(f"bimetal.elastic/{life}", store), dist.get_rank(), dist.get_world_size())
        self._tell_environment(members, epoch)
        return members, epoch

    def newcomer(self, door: str, job: str, **how: Any) -> Members:
        """For join(). A launcher's settings of ranks do not hold for it."""
        if dist.is_initialized():
            raise error("a process with BIMETAL_DOOR gets its process group from the workers that it joins: leave out init_process_group",
                        "invalid_argument")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
        return Members(door.split(",")[0], job, **how)

    def enter(self, members: Members, epoch: Epoch) -> None:
        """The group of that epoch. Collective."""
        self._tell_environment(members, epoch)
        # By its name a group's keys are told apart, and back ends count its lives, which a newcomer has not seen.
        dist.distributed_c10d._world.group_count = epoch.epoch * _NAMES_OF_AN_EPOCH
        if self._hook is not None:
            sys.excepthook = self._hook  # of torch's every group puts one around the last
        self._hook = sys.excepthook
        dist.init_process_group(BACKEND, store=members.store(epoch), rank=epoch.rank, world_size=epoch.size,
                                timeout=datetime.timedelta(seconds=_TO_CONNECT_S))
        _backend_of(None, "cpu").set_timeout(self._timeout)
        members.settle()

    def abort(self) -> None:
        """Threads that wait for this rank get an error. The group is still to be destroyed."""
        if dist.is_initialized():
            dist.group.WORLD.abort()

    def end(self) -> None:
        """Ends all groups."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _tell_environment(self, members: Members, epoch: Epoch) -> None:
        """As a launcher would: scripts read it, and the back end finds the address by which others reach this rank."""
        here = [rank for rank in range(epoch.size) if epoch.machine(rank) == epoch.machine(epoch.rank)]
        os.environ.update(RANK=str(epoch.rank), WORLD_SIZE=str(epoch.size), LOCAL_WORLD_SIZE=str(len(here)), BIMETAL_ADDRESS=members.address)
        os.environ.setdefault("LOCAL_RANK", str(here.index(epoch.rank)))  # a device is this process's for as long as it lives
