"""The thread that runs this rank's collectives, in the order that all ranks agree on.

Requests of the ranks find each other by name, so that ranks may ask for them in unlike orders, as hooks of a backward
pass do. In each round the ranks exchange their requests; a rank that has nothing keeps the others waiting, a rank that
has joined takes part in everything. negotiation.py has a round's decisions.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from bimetal._errors import Error
from bimetal.horovod.core import collectives
from bimetal.horovod.core.negotiation import Announcement, Decision, Rounds, decide
from bimetal.horovod.core.request import Handle, Misuse, Request
from bimetal.horovod.core.timeline import running

# A pause after a round in which no request was on all ranks. A new request ends it.
_PAUSE = 0.001
# Every rank waits, for different things, for so long: they will for ever. (Unless another thread of the same rank is
# about to make the missing request: hence not at once.)
_STALLED_AFTER = 10.0


class Engine:
    """Runs requests on a process group of its own. Thread-safe."""

    def __init__(self, group: dist.ProcessGroup, ranks: Sequence[int]):
        """``ranks``: the numbers of the group's ranks among all."""
        self._group = group
        self._ranks = list(ranks)
        self._rounds = Rounds(group)
        self._changed = threading.Condition()
        self._pending: dict[str, Request] = {}
        self._unnamed: collections.Counter[str] = collections.Counter()
        self._join: Handle | None = None
        self._closing = False
        self.error: BaseException | None = None  # the error that has ended it
        # For the join under way; only the engine's thread uses these.
        self._joined_before: set[int] = set()
        self._last_joined = -1
        self._idle_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="bimetal-horovod", daemon=True)
        self._thread.start()

    def name_for(self, kind: str) -> str:
        """A name for a request that has none: the same on all ranks whose calls of this kind come in one order."""
        with self._changed:
            self._unnamed[kind] += 1
            return f"{kind}.noname.{self._unnamed[kind]}"

    def submit(self, request: Request) -> Handle:
        """Queues the request. Raises the error that has ended the engine, and ``invalid_argument`` while one of that
        name is pending."""
        collectives.check(request.signature, self._ranks)
        with self._changed:
            self._refuse_if_over()
            if request.signature.name in self._pending:
                raise Misuse(f"{request.signature}: one of that name is still pending; names must be unique until "
                             f"synchronize()")
            self._pending[request.signature.name] = request
            self._changed.notify()
        return request.handle

    def join(self) -> Handle:
        """Says that this rank has no more data; its handle is done when all ranks have said so."""
        with self._changed:
            self._refuse_if_over()
            if self._join is not None:
                raise Misuse("join() is under way already")
            self._join = Handle("join()", lambda last: last)
            self._changed.notify()
            return self._join

    def close(self, seconds: float) -> None:
        """Ends the thread and the group; pending requests fail. Ranks that still wait for this one get an error."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            waits = bool(self._pending) or self._join is not None
        if not waits:
            self._thread.join(seconds)  # it is idle, or about to end its present collective
        if self._thread.is_alive():
            self._group.abort()
            self._thread.join(seconds)
        else:
            self._group.shutdown()

    def _refuse_if_over(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closing:
            raise Error("shutdown() has been called", "aborted")

    def _run(self) -> None:
        try:
            with torch.no_grad():
                while self._wait_for_something():
                    self._round()
        except BaseException as error:  # noqa: BLE001 (the waiting thread gets it)
            self._end(error)
        else:
            self._end(Error("shutdown() has been called", "aborted"))

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self.error = error
            handles = [request.handle for request in self._pending.values()] + ([self._join] if self._join else [])
            self._pending.clear()
            self._join = None
            closing = self._closing
        for handle in handles:
            handle.fail(error)
        if not closing:
            self._group.abort()  # so that the others learn of it now

    def _wait_for_something(self) -> bool:
        with self._changed:
            while not (self._pending or self._join or self._closing):
                self._changed.wait()
            return not self._closing

    def _round(self) -> None:
        with self._changed:
            requests = tuple(request.signature for request in self._pending.values())
            joined = self._join is not None
        timeline = running()
        if timeline:
            timeline.cycle()
        mine = Announcement(requests, joined, self._stalled())
        text = mine.encode()
        texts = self._rounds.exchange(text)
        # Usually all ranks ask for the same: then there is nothing to decode.
        announcements = [mine if other == text else Announcement.decode(other) for other in texts]
        decision = decide(announcements, self._ranks)
        self._note_joined(announcements)
        if decision.run or decision.refused or decision.all_joined or decision.deadlock:
            self._idle_since = None
            self._carry_out(decision)
        else:
            self._pause(len(requests))

    def _carry_out(self, decision: Decision) -> None:
        for name, (code, message) in decision.refused.items():
            if request := self._take(name):
                request.handle.fail(Error(message, code))
        self._execute(decision)
        if decision.deadlock:
            with self._changed:
                names = list(self._pending)
            for name in names:
                if request := self._take(name):
                    request.handle.fail(Error(decision.deadlock, "call_mismatch"))
        if decision.all_joined:
            self._finish_join()

    def _execute(self, decision: Decision) -> None:
        started = []
        for found in decision.run:
            name = next(one.name for one in found if one)
            request = self._take(name)
            begun = time.monotonic()
            try:
                started.append((request, begun, collectives.start(self._group, self._ranks, found, request)))
            except Error as error:
                if error.code not in ("unsupported", "invalid_argument") or request is None:
                    raise
                request.handle.fail(error)  # refused before anything was sent, on all ranks alike
            except BaseException as error:
                if request:
                    request.handle.fail(error)
                raise
        timeline = running()
        for index, (request, begun, finish) in enumerate(started):
            try:
                result = finish()
                collectives.catch_up(result)
            except BaseException as error:
                for late, _, _ in started[index:]:
                    if late:
                        late.handle.fail(error)
                raise
            if request:
                if timeline:
                    timeline.collective(request, begun, time.monotonic())
                request.handle.finish(result)

    def _take(self, name: str) -> Request | None:
        with self._changed:
            return self._pending.pop(name, None)

    def _note_joined(self, announcements: list[Announcement]) -> None:
        joined = {rank for rank, announcement in enumerate(announcements) if announcement.joined}
        if newly := joined - self._joined_before:
            self._last_joined = max(newly)
        self._joined_before = joined

    def _finish_join(self) -> None:
        with self._changed:
            handle, self._join = self._join, None
            # Ranks that joined early have made fewer calls.
            self._unnamed.clear()
        last, self._last_joined = self._last_joined, -1
        self._joined_before = set()
        if handle:
            handle.finish(last)

    def _stalled(self) -> bool:
        """Whether this rank can have no new requests: its threads wait for those that have not been run for long."""
        if self._idle_since is None or time.monotonic() - self._idle_since < _STALLED_AFTER:
            return False
        with self._changed:
            return any(request.handle.waiting for request in self._pending.values())

    def _pause(self, announced: int) -> None:
        if self._idle_since is None:
            self._idle_since = time.monotonic()
        with self._changed:
            if len(self._pending) == announced and not self._closing:
                self._changed.wait(_PAUSE)
