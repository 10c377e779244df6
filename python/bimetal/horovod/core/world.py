"""The ranks of this job as this process knows them, and the process group that its collectives use."""

from __future__ import annotations

import atexit
import datetime
import itertools
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from bimetal import _build
from bimetal._core import core
from bimetal._errors import Error
from bimetal.horovod.core.engine import Engine
from bimetal.horovod.core.meeting import Meeting, Place, find_place, open_meeting
from bimetal.horovod.core.negotiation import Rounds

SECONDS_TO_CLOSE = 5.0


@dataclass
class World:
    """One life of the group of all ranks; elastic jobs have several."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    generation: int
    store: dist.Store  # where process sets of it meet, too
    group: dist.ProcessGroup
    engine: Engine
    sets: dict[int | None, Any] = field(default_factory=dict)  # process sets that have been added, by number
    set_engines: dict[int, Engine] = field(default_factory=dict)  # of those that this rank is in
    _set_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def number_of_next_set(self) -> int:
        return next(self._set_numbers)

    def close(self) -> None:
        for engine in [*self.set_engines.values(), self.engine]:
            engine.close(SECONDS_TO_CLOSE)
        for process_set in self.sets.values():
            process_set.process_set_id = None


_world: World | None = None
_meeting: Meeting | None = None
_place: Place | None = None
_generation = 0  # of the next world of init()


def current() -> World:
    """Raises ValueError before init()."""
    if _world is None:
        raise ValueError("Horovod's functions need init() first: call hvd.init()")
    return _world


def is_initialized() -> bool:
    """Whether init() has been called, and shutdown() not since."""
    return _world is not None


def shutdown() -> None:
    """Leaves the other ranks; those that still wait for this one get an error. init() may follow."""
    global _world
    world, _world = _world, None
    if world is not None:
        world.close()


def end_with_the_process() -> None:
    """Leaves the others at the end of the process if nobody has before. Called in init(), so that it is run before what
    ``import bimetal`` has registered."""
    atexit.unregister(shutdown)
    atexit.register(shutdown)


if hasattr(os, "register_at_fork"):  # a forked child, as DataLoader's workers are, leaves nobody when it ends
    os.register_at_fork(after_in_child=lambda: atexit.unregister(shutdown))


def enter(store: dist.Store, rank: int, size: int, generation: int, seconds: float | None = None) -> None:
    """Forms the world of that generation with the other ranks. Collective among them.

    Args:
        seconds: for all ranks to come; None is what the environment says.
    """
    global _world, _generation
    group = _make_group(dist.PrefixStore(f"{generation}/", store), f"horovod/{generation}", list(range(size)), rank,
                        seconds or connect_seconds())
    try:
        places = _exchange_places(group)
        _world = World(rank, size, *_locality(places, rank), generation, store, group, Engine(group, range(size)))
    except BaseException:
        group.abort()
        raise
    _generation = generation + 1


def meeting() -> Meeting:
    """The meeting at which this process has met the others; it outlives worlds."""
    assert _meeting is not None
    return _meeting


def first_place() -> Place:
    """This process's place, from the environment at its start."""
    assert _place is not None
    return _place


def connect_seconds() -> float:
    return _seconds("HOROVOD_GLOO_TIMEOUT_SECONDS", 300.0)


def operation_seconds() -> float:
    """How long a collective waits for other ranks."""
    return _seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 1800.0)


def warning_seconds() -> float:
    """The seconds after which a wait tells what it waits for."""
    return _seconds("HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0)


def _seconds(name: str, otherwise: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else otherwise
    except ValueError:
        raise Error(f"{name}={text!r} is not a number of seconds", "invalid_argument") from None
    return value if value > 0 else otherwise  # Horovod's 0 is "never"; no wait here is without an end


def meet() -> bool:
    """Finds the store and this process's place. False if a process has been here before in this rank's place."""
    global _meeting, _place
    if _meeting is not None:
        return True  # shutdown() and init() once more
    core.end_with_launcher()
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        place = Place(dist.get_rank(), dist.get_world_size(), None, None, "torch.distributed")
        found = Meeting(store)
    else:
        place = find_place()
        found = open_meeting(place, connect_seconds())
    # A launcher that starts all ranks again may keep its store.
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    found.store = dist.PrefixStore(f"bimetal.horovod/{life}/", found.store)
    _meeting, _place = found, place
    return found.store.add(f"started/{place.rank}", 1) == 1


def next_generation() -> int:
    """The number of the world that init() forms: how many there have been in this process."""
    return _generation


def make_group_of(ranks: Sequence[int], number: int) -> dist.ProcessGroup:
    """For process set ``number``: a group of some ranks of this world, this one included. Collective among them."""
    here = current()
    store = dist.PrefixStore(f"{here.generation}/sets/{number}/", here.store)
    return _make_group(store, f"horovod/{here.generation}/{number}", ranks, here.rank, connect_seconds(),
                       here.group)


def _make_group(store: dist.Store, name: str, ranks: Sequence[int], rank: int, seconds: float,
                world: Any = None) -> dist.ProcessGroup:
    """A process group of backend bimetal beside torch's default one, which belongs to the user. ``world``: a group of
    all ranks, whose connections it shares."""
    place = torch._C._distributed_c10d._DistributedBackendOptions()
    place.store, place.group_rank, place.group_size = store, ranks.index(rank), len(ranks)
    place.timeout, place.group_id = datetime.timedelta(seconds=seconds), name
    # Named, so that later groups of torch.distributed do not take this one for the default group.
    place.global_ranks_in_group = list(ranks)
    group = core.make_backend(place, world)
    group.set_timeout(datetime.timedelta(seconds=operation_seconds()))
    return group


@dataclass(frozen=True)
class _Whereabouts:
    host: str
    local_rank: int | None
    version: str


def _exchange_places(group: dist.ProcessGroup) -> list[_Whereabouts]:
    host = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    # A world that was formed anew has other local ranks than those that the launcher gave.
    given = first_place().local_rank if group.size() == first_place().size else None
    texts = Rounds(group).exchange(json.dumps([host, given, _build.VERSION]).encode())
    everyone = [_Whereabouts(*json.loads(text)) for text in texts]
    for rank, other in enumerate(everyone):
        if other.version != _build.VERSION:
            raise Error(f"rank {rank} runs bimetal {other.version}, this rank {_build.VERSION}: install the same "
                        f"version everywhere", "protocol_mismatch", rank)
    return everyone


def _locality(everyone: Sequence[_Whereabouts], rank: int) -> tuple[int, int, int, int, bool]:
    """(local_rank, local_size, cross_rank, cross_size, homogeneous) of a rank."""
    on_host: dict[str, list[int]] = {}
    for other, place in enumerate(everyone):
        on_host.setdefault(place.host, []).append(other)
    sizes = [len(ranks) for ranks in on_host.values()]
    mine = on_host[everyone[rank].host]
    given = [everyone[other].local_rank for other in mine]
    local_rank = mine.index(rank)
    if sorted(one for one in given if one is not None) == list(range(len(mine))):
        local_rank = given[local_rank] or 0
    across = [host for host, ranks in on_host.items() if len(ranks) > local_rank]
    return local_rank, len(mine), across.index(everyone[rank].host), len(across), len(set(sizes)) == 1
