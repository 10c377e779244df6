"""The members of a job, over losses and newcomers: those of C++ jobs (src/bimetal/membership), by the C interface. They
agree on ranks, and get a store to meet in. What they do there is up to the caller."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from bimetal._asked_store import AskedStore
from bimetal._errors import Error, error
from bimetal.library.interface import Meeting, MemberOptions, Wait, check, lib, made, numbers, status_of, text_of
from bimetal.library.meeting import StoreForCore

_TO_ASK_MS = 10_000  # for one call of a member's store


@dataclass(frozen=True)
class Member:
    id: str
    name: str
    host: str
    door: str


@dataclass(frozen=True)
class Epoch:
    """Those who have agreed to be in it, by rank, and how they differ from those of the last one."""

    epoch: int
    rank: int
    door: str  # this member's
    members: list[Member]
    lost: list[Member]
    left: list[Member]
    came: list[Member]

    @property
    def size(self) -> int:
        return len(self.members)

    def machine(self, rank: int) -> str:
        """The text by which ranks of one machine know that they are."""
        return self.members[rank].door.rpartition(":")[0]


class Members:
    """This process's place among the members of a job. Use from one thread at a time.

    Args:
        towards: HOST:PORT of somebody whom the others reach, to listen at the address towards that one; None: BIMETAL_ADDRESS, or
            loopback.
        job: the training's facts: newcomers with other facts are refused.
        least, most: members that an epoch needs, and beyond which newcomers wait; 0: any number.
        keeper: the machine that goes on where half of the members have lost the other half; "either": each half.
        patience: seconds for enough members to be there.
        timeout: seconds for a member that is there to come.
    """

    def __init__(self, towards: str | None, job: str, *, least: int = 1, most: int = 0, keeper: str = "", patience: float = 60.0,
                 timeout: float = 300.0) -> None:
        self._handle = self._group = 0
        self._process = os.getpid()
        door = text_of(lib.door, towards.encode() if towards else None)
        self.address = door.rpartition(":")[0].strip("[]")
        self._gives_up = False
        self._wait = Wait(lambda _: int(self._gives_up))
        self._options = MemberOptions(
            ctypes.sizeof(MemberOptions), door.encode(), socket.gethostname().encode(), os.environ.get("BIMETAL_WORKER", "python").encode(), job.encode(), keeper.encode(), least,
            most, int(patience * 1000), int(timeout * 1000), self._wait, None)
        self._timeout_ms = int(timeout * 1000)
        self._handle = made(lib.members_new, ctypes.byref(self._options))

    def found(self, store: dist.Store, rank: int, size: int) -> Epoch:
        """The first epoch, of ranks that have met in `store`. Collective."""
        given = StoreForCore(store)
        try:
            place = Meeting(ctypes.sizeof(Meeting), given.handle, b"members", rank, size, self._timeout_ms, None, None)
            self._group = made(lib.group_meet, ctypes.byref(place))
            check(lib.members_found(self._handle, self._group))
        finally:
            given.free()
            self.settle()
        return self.epoch()

    def join(self, doors: str) -> Epoch:
        """In its place, for a process that comes later: knocks at "HOST:PORT,HOST:PORT…" until it is in. settle() is to follow."""
        return self._enter(lib.members_join, doors.encode())

    def next(self, loss: Error | None, leaving: Sequence[int] = ()) -> Epoch:
        """The next epoch, once the groups of the last one have ended: because of a loss, or where all have agreed to it, but for the
        ranks that leave, which do not call it. settle() is to follow."""
        status = status_of(loss.code) if loss is not None else 0
        return self._enter(lib.members_next, status, str(loss).encode() if loss is not None else None,
                           -1 if loss is None or loss.rank is None else loss.rank,
                           numbers(leaving, ctypes.c_int32), len(leaving))

    def _enter(self, function: Any, *arguments: Any) -> Epoch:
        """Beside this thread, which has signals to handle: Ctrl-C ends the wait."""
        self.settle()
        outcome: list[int | Exception] = []
        over = threading.Event()  # for a join() that a signal interrupts, Python takes the thread for ended

        def enter() -> None:
            try:
                outcome.append(made(function, self._handle, *arguments))
            except Exception as problem:  # noqa: BLE001 (raised below)
                outcome.append(problem)
            finally:
                over.set()

        threading.Thread(target=enter, name="bimetal-elastic", daemon=True).start()
        try:
            while not over.wait(1.0):
                pass
        except BaseException:
            self._gives_up = True
            over.wait()
            raise
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        self._group = outcome[0]
        return self.epoch()

    def settle(self) -> None:
        """All have met in the epoch's store: the connections by which they have agreed on it are given up."""
        group, self._group = self._group, 0
        if group:
            lib.group_free(group)

    def epoch(self) -> Epoch:
        told = json.loads(text_of(lib.members_told, self._handle))
        lists = {name: [Member(**one) for one in told.pop(name)] for name in ("members", "lost", "left", "came")}
        return Epoch(**told, **lists)

    def store(self, epoch: Epoch) -> dist.Store:
        """The store of that epoch alone, at its rank 0's door."""
        self._store = AskedStore(ServedStore(epoch.members[0].door))  # torch itself keeps nothing that is Python's
        return dist.PrefixStore(f"epoch/{epoch.epoch}/{epoch.members[0].id}", self._store)

    def somebody_waits(self) -> bool:
        """Whether a newcomer does. To be asked on all ranks, now and then."""
        waits = ctypes.c_int32()
        check(lib.members_somebody_waits(self._handle, ctypes.byref(waits)))
        return bool(waits.value)

    def fail(self, text: str) -> None:
        """The job has failed here, and the others are told so. Waits for them, but not for long."""
        lib.members_end(self._handle, status_of("aborted"), text.encode())

    def finish(self) -> None:
        """The job is done: newcomers who still wait are told so."""
        lib.members_end(self._handle, 0, None)

    def close(self) -> None:
        """Nobody is answered any more."""
        handle, self._handle = self._handle, 0
        if handle and os.getpid() == self._process:  # a forked child has none of its threads
            self.settle()
            lib.members_free(handle)

    __del__ = close


class ServedStore:
    """Answers for a member's store, as AskedStore asks."""

    def __init__(self, door: str) -> None:
        self._handle = 0
        self._handle = made(lib.store_connect, door.encode(), _TO_ASK_MS)

    def __del__(self) -> None:
        if self._handle:
            lib.store_free(self._handle)

    def __call__(self, method: str, *arguments: Any) -> Any:
        if method not in ("get", "set", "add"):
            raise NotImplementedError(f"{method}() of a member's store")
        return getattr(self, f"_{method}")(*arguments)

    def _get(self, keys: list[str]) -> list[bytes | None]:
        return [self._try_get(key) for key in keys]

    def _try_get(self, key: str) -> bytes | None:
        value, size = ctypes.c_void_p(), ctypes.c_int64()
        check(lib.store_try_get(self._handle, key.encode(), _TO_ASK_MS, ctypes.byref(value),
                                                                ctypes.byref(size)))
        return None if value.value is None else ctypes.string_at(value.value, size.value)

    def _set(self, key: str, value: bytes) -> None:
        check(lib.store_set(self._handle, key.encode(), value, len(value), _TO_ASK_MS))

    def _add(self, key: str, amount: int) -> int:
        total = ctypes.c_int64()
        check(lib.store_add(self._handle, key.encode(), amount, _TO_ASK_MS, ctypes.byref(total)))
        return total.value
