"""Who is in the world, for jobs that outlive the loss of ranks: agreed on through the store.

Every process of an elastic job has a number of its own, its member number: the rank that it was started with, or the
next free one for a process that comes later. While it lives, a thread of it counts up a key of the store. After a
failure every survivor goes to the next generation: the first that comes leads. It waits for each former member
until that has come, too, or its count stands still; then it writes down who is in. A leader that dies is noticed by
its own count, and the others go one generation further.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator

import torch.distributed as dist

from bimetal._errors import Error
from bimetal.horovod.core import world

_BEAT = 0.3
_DEAD_IF_REPORTED = 1.5  # seconds without a beat of a member that somebody has lost
_DEAD = 5.0  # and of any other
_POLL = 0.05
_SECONDS_TO_CONNECT = 30.0


class _Heartbeat:
    """Counts up this member's key while the process lives, and watches for newcomers."""

    def __init__(self, store: dist.Store, member: int):
        self.newcomers = 0  # that have been counted so far
        self._store = store
        self._member = member
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bimetal-horovod-heartbeat", daemon=True)
        self._beat(0)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(2.0)

    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self._member}", str(number))
        self.newcomers = self._store.add("newcomers", 0)

    def _run(self) -> None:
        number = 0
        # A store that is gone: whoever forms a new world finds out, and says so.
        with contextlib.suppress(RuntimeError):
            while not self._ended.wait(_BEAT):
                number += 1
                self._beat(number)


class _Pulses:
    """Since when each member's count stands still, as seen from here."""

    def __init__(self, store: dist.Store):
        self._store = store
        self._seen: dict[int, tuple[bytes, float]] = {}

    def still_for(self, member: int) -> float:
        key = f"beat/{member}"
        beat = self._store.get(key) if self._store.check([key]) else b""
        before, since = self._seen.get(member, (None, 0.0))
        if beat != before:
            since = time.monotonic()
            self._seen[member] = (beat, since)
        return time.monotonic() - since


class Membership:
    """This process's part in an elastic job. For one thread, but for newcomers_wait()."""

    def __init__(self, store: dist.Store, member: int, members: list[int]):
        self._store = store
        self._member = member
        self._members = members  # of the current world, in order of rank
        self._heartbeat = _Heartbeat(store, member)
        self._included = self._heartbeat.newcomers

    def stop(self) -> None:
        self._heartbeat.stop()

    def newcomers_wait(self) -> bool:
        """Whether processes have come since the world was formed."""
        return self._heartbeat.newcomers > self._included

    def form_anew(self) -> None:
        """Leaves the current world and forms one of all members that live, newcomers among them.

        Raises:
            bimetal.Error: ``system`` where the store is gone, ``aborted`` where the others have gone on without this
                process, ``timeout`` after HOROVOD_ELASTIC_TIMEOUT (600) seconds.
        """
        lost = _lost_rank()
        reported = [self._members[lost]] if lost is not None and lost < len(self._members) else []
        generation = world.current().generation
        world.shutdown()
        until = time.monotonic() + _elastic_seconds()
        while True:
            generation += 1
            try:
                members = self._agree(generation, reported, until)
                self._enter(members, generation)
                return
            except Error as error:
                if error.code in ("aborted", "system") or time.monotonic() > until:
                    raise
                reported = []

    def wait_to_be_taken_in(self) -> None:
        """For a newcomer: until the running job forms a world with it. Raises bimetal.Error ``timeout``."""
        until = time.monotonic() + _elastic_seconds()
        with _naming_the_store():
            while time.monotonic() < until:
                latest = int(self._store.get("latest")) if self._store.check(["latest"]) else 0
                members = json.loads(self._store.get(f"{latest}/world")) if latest else []
                if self._member in members:
                    self._enter(members, latest)
                    return
                time.sleep(_POLL)
        raise Error("the running job did not take this process in: it does so at state.commit() or "
                    "state.check_host_updates() within a function of hvd.elastic.run", "timeout")

    def _enter(self, members: list[int], generation: int) -> None:
        world.enter(world.meeting().store, members.index(self._member), len(members), generation, _SECONDS_TO_CONNECT)
        self._members = members
        self._included = max(self._included, self._heartbeat.newcomers)

    def _agree(self, generation: int, reported: list[int], until: float) -> list[int]:
        with _naming_the_store():
            self._store.set(f"{generation}/here/{self._member}", json.dumps(reported))
            leader = int(self._store.compare_set(f"{generation}/leader", "", str(self._member)))
            if leader == self._member:
                members = self._wait_for_members(generation, until)
                self._store.set(f"{generation}/world", json.dumps(members))
                self._store.set("latest", str(generation))
            else:
                members = self._wait_for_leader(generation, leader, until)
        if self._member not in members:
            raise Error("the other ranks have gone on without this one: it gave no sign of life for some seconds "
                        "(stopped, or its machine asleep); start it anew to take part again", "aborted")
        return members

    def _wait_for_members(self, generation: int, until: float) -> list[int]:
        pulses = _Pulses(self._store)
        first_newcomer = world.first_place().size
        here: set[int] = set()
        reported: set[int] = set()
        while time.monotonic() < until:
            for member in set(self._members) - here:
                key = f"{generation}/here/{member}"
                if self._store.check([key]):
                    here.add(member)
                    reported.update(json.loads(self._store.get(key)))
            missing = [member for member in self._members if member not in here]
            if all(pulses.still_for(member) > (_DEAD_IF_REPORTED if member in reported else _DEAD)
                   for member in missing):
                count = self._store.add("newcomers", 0)
                later = [first_newcomer + number for number in range(count)]
                return sorted(here) + self._living(member for member in later if member not in self._members)
            time.sleep(_POLL)
        raise Error(f"members {missing} live but do not come to form a new world", "timeout")

    def _living(self, members: Iterable[int]) -> list[int]:
        """Those of them that are heard within three beats."""
        waiting = {member: self._store.get(f"beat/{member}") for member in members
                   if self._store.check([f"beat/{member}"])}
        if waiting:
            time.sleep(3 * _BEAT)
        return [member for member, beat in waiting.items() if self._store.get(f"beat/{member}") != beat]

    def _wait_for_leader(self, generation: int, leader: int, until: float) -> list[int]:
        pulses = _Pulses(self._store)
        key = f"{generation}/world"
        while not self._store.check([key]):
            if pulses.still_for(leader) > _DEAD:
                raise Error(f"member {leader}, which led generation {generation}, is gone", "peer_lost")
            if time.monotonic() > until:
                raise Error(f"member {leader} did not finish generation {generation}", "timeout")
            time.sleep(_POLL)
        return json.loads(self._store.get(key))


@contextlib.contextmanager
def _naming_the_store() -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except RuntimeError as error:
        where = "the launcher" if world.meeting().outlives_ranks else "rank 0"
        first_line = str(error).splitlines()[0]
        raise Error(f"the store by which the ranks find each other is gone ({first_line}): {where} served it, and "
                    f"without it the survivors cannot form a new world; start the job anew", "system") from None


def _lost_rank() -> int | None:
    error = world.current().engine.error
    return error.rank if isinstance(error, Error) and error.code == "peer_lost" else None


def _elastic_seconds() -> float:
    return float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT") or 600)


_membership: Membership | None = None


def _elastic_store() -> dist.Store:
    return dist.PrefixStore("elastic/", world.meeting().store)


def activate() -> Membership:
    """This process's membership, from the first call of an elastic function on."""
    global _membership
    if _membership is None:
        store = _elastic_store()
        atexit.register(deactivate)
        with _naming_the_store():
            store.set("active", "1")
            _membership = Membership(store, world.first_place().rank, list(range(world.first_place().size)))
    return _membership


def come_later() -> None:
    """For a process whose rank has been started once before: joins the running job if that is elastic.

    Raises:
        bimetal.Error: ``invalid_argument`` where the job is not elastic: then two processes have one rank.
    """
    global _membership
    store = _elastic_store()
    place = world.first_place()
    if not store.check(["active"]):
        raise Error(f"another process with rank {place.rank} has started already: give every process a rank of its "
                    f"own, and a new job a store of its own (another MASTER_PORT)", "invalid_argument", place.rank)
    atexit.register(deactivate)
    number = place.size + store.add("newcomers", 1) - 1
    _membership = Membership(store, number, [])
    _membership.wait_to_be_taken_in()


def deactivate() -> None:
    """Ends the heartbeat; for the end of the process."""
    global _membership
    membership, _membership = _membership, None
    if membership is not None:
        membership.stop()
