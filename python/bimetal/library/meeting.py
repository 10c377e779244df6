"""Makes a process group with connected ranks from torch's options for a new one."""

from __future__ import annotations

import collections
import ctypes
import weakref
from ctypes import c_int32
from typing import Any

import torch.distributed as dist

from bimetal.library.interface import (
    Meeting,
    StoreAdd,
    StoreCalls,
    StoreSet,
    StoreTryGet,
    check,
    lib,
    made,
    text_of,
)
from bimetal.library.beside import beside_others
from bimetal.library.process_group import LibraryProcessGroup
from bimetal.library.works import stop_completing

# The living groups, oldest first. Those of torch's default groups have connections that others share.
_living: list[weakref.ref[LibraryProcessGroup]] = []
_lives: collections.Counter[tuple[str, int, int]] = collections.Counter()


class StoreForCore:
    """One of torch's stores for the core: its calls as C functions, for as long as this object lives."""

    def __init__(self, store: dist.Store) -> None:
        self.problem: Exception | None = None
        server = server_of(store)
        name = f"torch's store at {server}" if server else "torch's store"
        address = text_of(lib.address, server.encode() if server else None)

        def set_value(_: Any, key: bytes, value: int, size: int) -> int:
            return self._tell(lambda: store.set(key.decode(), ctypes.string_at(value, size)))

        def try_get(_: Any, key: bytes, answer: int) -> int:
            def ask() -> None:
                if store.check([key.decode()]):
                    value = store.get(key.decode())
                    lib.answer_set(answer, value, len(value))
            return self._tell(ask)

        def add(_: Any, key: bytes, delta: int, value: Any) -> int:
            def ask() -> None:
                value[0] = store.add(key.decode(), delta)
            return self._tell(ask)

        self._calls = StoreCalls(ctypes.sizeof(StoreCalls), None, StoreSet(set_value), StoreTryGet(try_get),
                                 StoreAdd(add), name.encode(), address.encode())
        self.handle = made(lib.store_of_calls, ctypes.byref(self._calls))

    def free(self) -> None:
        lib.store_free(self.handle)

    def _tell(self, call: Any) -> int:
        try:
            call()
        except Exception as problem:  # noqa: BLE001 (it goes on as the cause of the meeting's)
            self.problem = problem
            return 1
        return 0


def make_backend(place: Any, world: LibraryProcessGroup | None = None) -> LibraryProcessGroup:
    """From torch's _DistributedBackendOptions to a process group. Collective.

    Args:
        world: the group that place.global_ranks_in_group are ranks of, whose connections it shares; None: torch's default
            group, where that is this back end's.
    """
    check(lib.end_with_launcher())
    members = [int(rank) for rank in place.global_ranks_in_group]
    world = world or (_world_of(place.group_rank, members) if members else None)
    timeout_ms = max(1, int(place.timeout.total_seconds() * 1000))
    store = StoreForCore(place.store)
    try:
        meeting = Meeting(ctypes.sizeof(Meeting), store.handle, place.group_id.encode(), place.group_rank,
                          place.group_size, timeout_ms, world.handle() if world else None,
                          (c_int32 * len(members))(*members) if members else None)
        handle = made(lib.group_meet, ctypes.byref(meeting))
    except Exception as problem:
        raise problem from store.problem
    finally:
        store.free()
    name = (place.group_id, place.group_rank, place.group_size)
    _lives[name] += 1  # the store may outlive the group
    own_store = dist.PrefixStore(f"bimetal/life/{_lives[name]}", place.store)
    group = beside_others(place, LibraryProcessGroup(handle, place, own_store, make_backend))
    _living[:] = [other for other in _living if other() is not None]
    _living.append(weakref.ref(group))
    return group


def close_all(seconds: float) -> None:
    """Ends every process group of this backend in order, within `seconds` each."""
    for reference in _living:
        group = reference()
        if group is not None:
            group.close(seconds)
    stop_completing()


def _world_of(rank: int, members: list[int]) -> LibraryProcessGroup | None:
    """The newest default group that has all of them, and this process as the one that it is there."""
    for reference in reversed(_living):
        group = reference()
        if group is None or group.members:
            continue
        if group.rank() == members[rank] and all(member < group.size() for member in members):
            return group
    return None


def server_of(store: Any) -> str | None:
    """HOST:PORT of the server behind a store, as far as it has one."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return None
    host = f"[{store.host}]" if ":" in store.host else store.host
    return f"{host}:{store.port}"
