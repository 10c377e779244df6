"""The torch.distributed backend "bimetal", and what torch's own functions do not show of it."""

from __future__ import annotations

import atexit
import datetime
import json
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

from bimetal import _C
from bimetal._core import core
from bimetal._errors import error
from bimetal.library import LibraryProcessGroup

BACKEND = "bimetal"
DEVICES = ["cpu", "cuda", "mps", "xpu"]

_registered = False

# How long the process's end waits for calls in flight.
_SECONDS_AT_EXIT = 2.0


def create(place: Any, options: Any) -> Any:
    """For torch: a process group's backend."""
    del options  # of torch's own; all that they say is in `place`, too
    return core.make_backend(place)


def register() -> None:
    """Makes ``init_process_group("bimetal")`` work. ``import bimetal`` calls it; again it does nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    if BACKEND not in dist.Backend.backend_list:  # bimetal_autoload may have been here
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=DEVICES)
    # Threads of a group must not outlive the interpreter, whose lock their callbacks take.
    atexit.register(core.close_all, _SECONDS_AT_EXIT)
    if hasattr(os, "register_at_fork"):  # a child has none of the threads: it has nothing to end
        os.register_at_fork(after_in_child=lambda: atexit.unregister(core.close_all))


def _backend_of(group: dist.ProcessGroup | None, device: str | torch.device = "cpu") -> LibraryProcessGroup:
    backend = _own_group(group)._get_backend(torch.device(device))
    if not isinstance(backend, LibraryProcessGroup):
        raise error(f"this process group's back end is {backend.name()}, not bimetal: init_process_group(\"bimetal\")",
                    "invalid_argument")
    return backend


def core_group(group: dist.ProcessGroup | None) -> _C.ProcessGroup:
    """The group as the torch library's calls take it.

    Raises:
        bimetal.Error: ``invalid_argument`` where its back end is not Bimetal's.
    """
    return _backend_of(group).for_torch_library()


def _own_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Raises ValueError where this process is in no such group."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group yet: call torch.distributed.init_process_group first")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not in that group: new_group() gives it a mere mark in the group's place")
    return group


def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: datetime.timedelta | None = None) -> None:
    """A barrier that names every rank that did not come.

    ``torch.distributed.monitored_barrier`` refuses all backends but Gloo by name; this is the same for
    Bimetal. It goes through the store, so that a rank that is missing breaks nothing: the group can be used
    afterwards.

    Args:
        group: a process group of this backend; None is the default group.
        timeout: how long to wait for the others; None is the group's own timeout.

    Raises:
        bimetal.Error: with code ``timeout`` on every rank that came; the message lists all that did not.

    On a rank outside of the group it does nothing but warn, as torch's functions do.
    """
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        warnings.warn("monitored_barrier on a rank that is not in the group does nothing", stacklevel=2)
        return
    group = _own_group(group)
    if timeout is None:
        group.monitored_barrier(wait_all_ranks=True)
    else:
        group.monitored_barrier(timeout, wait_all_ranks=True)


def flight_recorder(group: dist.ProcessGroup | None = None, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The last 1000 calls of this process in all groups of the job, for finding out who did what.

    Args:
        group: a process group of this backend; None is the default group.
        device: for which device of the group, if it has several backends.
    """
    return json.loads(core.flight_recorder(_backend_of(group, device)))


def bytes_sent(group: dist.ProcessGroup | None = None, device: str | torch.device = "cpu") -> int:
    """Bytes that this process has put on the wire for the job so far; shared memory is not on it."""
    return core.bytes_sent(_backend_of(group, device))


def transport(group: dist.ProcessGroup | None = None, device: str | torch.device = "cpu") -> str:
    """The carrier of the group's messages: ``shm`` where all ranks share memory, else ``tcp`` or ``mpi``. Ranks that
    share memory with some of the others reduce through it first, and only the rest goes by that."""
    return core.transport(_backend_of(group, device))
