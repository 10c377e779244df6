"""Calls in flight, and their futures.

callbacks.py says when a future's callbacks run. The futures that nobody waits for are completed at the end of the backward in
which the reducer of DDP has asked for them, all others by a thread of this process.

DDP's reducer asks for a bucket's future during the backward and waits for it when all has been computed, in a callback that it
has given torch's engine after the last bucket. One that is queued when the future is asked for comes before that one and in the
same thread. So nobody need be woken up to complete the future, on processors that the backward has a use for.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from bimetal.library.callbacks import OrderedFuture, OwnThread, running
from bimetal.library.interface import OK, PENDING, at_once, check, error, failure, lib, made
from bimetal.library.tensors import HostTensors

# The code of torch's function that calls the engine, and the function that knows the engine's present node. A torch
# without them: never.
_engines = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
_present_node = getattr(torch._C, "_current_autograd_node", None)


class _AtEnd:
    """Runs `action` when the engine calls it, or `instead` when the engine lets go of it since the backward has failed."""

    def __init__(self, action: Callable[[], object], instead: Callable[[], object]) -> None:
        self._action = action
        self._instead: Callable[[], object] | None = instead

    def __call__(self) -> None:
        self._action()
        self._instead = None  # not if it was interrupted

    def __del__(self) -> None:
        if self._instead is not None:
            self._instead()


def run_at_end(caller: FrameType | None, action: Callable[[], object], instead: Callable[[], object]) -> bool:
    """Has `action` run at the end of the present backward, or `instead` where that does not come to its end.

    False, and nothing will run, unless the engine itself has come to `caller`, the frame that asked, as it does by the
    reducer. Python code in between, a hook's, might wait for the future within the backward; a callback that waits at its
    end, as the reducer's in the first step of a static graph, has its turn before `action`; and a backward within another
    would end too early.
    """
    if _engines is None or caller is None or caller.f_code is not _engines:
        return False
    if _present_node is None or _present_node() is None:
        return False
    outer = caller.f_back
    while outer is not None:
        if outer.f_code is _engines:
            return False
        outer = outer.f_back
    torch.autograd.Variable._execution_engine.queue_callback(_AtEnd(action, instead))
    return True


_SLICE_MS = 500  # of a wait, between which Python handles signals

class LibraryWork(dist.Work):
    """A call of a process group: one or several of the core's, and the memory that they use.

    ``pending`` are the works of the group that are under way, which it leaves by itself.
    """

    is_message = False  # to one rank: its callbacks have an order there alone, and who attaches one waits
    _owns = True
    _ending = False
    _ended = False
    _error: BaseException | None = None
    _future: LibraryFuture | None = None
    _last: Callable[[], object] | None = None

    def __init__(self, host: HostTensors, outputs: list[torch.Tensor], pending: dict[int, LibraryWork],
                 calls: list[int]) -> None:
        super().__init__()
        self._calls = calls  # works of the core; those that were over at once are not among them
        self._host: HostTensors | None = host
        self._outputs = outputs
        self._pending = pending
        self._lock = threading.RLock()  # callbacks may ask the work that they belong to

    def __del__(self) -> None:
        if self._owns and at_once is not None:  # the interpreter may be ending
            for call in self._calls:
                at_once.work_free(call)

    def begun(self) -> None:
        """It is kept alive until it is done: the core uses its memory, whether anybody still wants it or not."""
        if not self.is_completed():  # short calls are
            self._pending[id(self)] = self

    def abandon(self, problem: BaseException) -> None:
        """It could not begin, or only in part, which keeps its memory until it is done. Nobody gets its results."""
        self._error = problem
        self.begun()

    def calls(self) -> Sequence[int]:
        return self._calls

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """True once it is done; raises its error. Its future is done then, too."""
        limit = timeout.total_seconds() if timeout is not None else 0.0
        if not self.is_completed() and not self.finish(time.monotonic() + limit if limit > 0 else None):
            raise error(f"waited in vain for {limit} s; the call itself goes on", "timeout")
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True

    def finish(self, until: float | None = None) -> bool:
        """Waits without raising; False if it is still under way at `until`, of time.monotonic()."""
        for call in self._calls:
            while not self._ended:
                left = _SLICE_MS if until is None else min(_SLICE_MS, max(0, int((until - time.monotonic()) * 1000)))
                status = lib.work_wait(call, left)
                if status != PENDING:
                    self._note(status)
                    break
                if until is not None and time.monotonic() >= until:
                    return False
        self._end()
        return True

    def is_completed(self) -> bool:
        if self._ended:
            return True
        for call in self._calls:
            status = at_once.work_test(call)
            if status == PENDING:
                return False
            self._note(status)
        self._end()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        """For a receive from any rank that is done: its sender's rank in the group."""
        sender = lib.work_sender(self._calls[0]) if len(self._calls) == 1 and self.is_success() else -1
        if sender < 0:
            raise error("only a receive from any rank that is done knows its sender", "invalid_argument")
        return sender

    source_rank = _source_rank

    def get_future(self) -> LibraryFuture:
        with self._lock:
            if self._future is None:
                self._future = LibraryFuture(self, [t.device for t in self._outputs if not t.is_cpu])
                if self._ending:
                    self._settle(self._future)
                over = self.is_completed()  # which settles it, too
                at_end = (not over or self._error is not None) and self._ends_with_backward(sys._getframe().f_back)
                if not over and not at_end:
                    _completion.watch(self)
            return self._future

    def _ends_with_backward(self, caller: FrameType | None) -> bool:
        """Its error is then the backward's. Copies to be made are not put off: they go on beside the backward."""
        if self._host is not None and self._host.has_results():
            return False
        return run_at_end(caller, self.wait, lambda: self._ended or _completion.watch(self))

    def when_over(self, action: Callable[[], object]) -> None:
        """Has `action`, one alone, run at the end of the call: before wait() returns, however early somebody waits."""
        with self._lock:
            if not self.is_completed():
                self._last = action
                _completion.watch(self)
                return
        action()

    def _note(self, status: int) -> None:
        if status != OK and self._error is None:
            self._error = failure(status)

    def _end(self) -> None:
        with self._lock:
            if self._ending:
                return
            self._ending = True
            try:
                if self._host is not None and self._error is None:
                    self._host.hand_back()
            except Exception as problem:  # noqa: BLE001 (the waiting thread gets it)
                self._error = problem
            self._host = None
            if self._future is not None:
                self._settle(self._future)
            if self._last is not None:
                self._last()
                self._last = None
            self._ended = True  # a thread that sees that finds the future done
        self._pending.pop(id(self), None)

    def _settle(self, future: LibraryFuture) -> None:
        if self._error is not None:
            future.fail(self._error)
        else:
            future.set_result(self._outputs)
        future.settled()


class SeveralWorks(LibraryWork):
    """Works that were made as one, whose calls it uses."""

    _owns = False

    def __init__(self, works: list[LibraryWork]) -> None:
        super().__init__(HostTensors(), [tensor for work in works for tensor in work.result()], {},
                         [call for work in works for call in work.calls()])
        self._works = works

    def _end(self) -> None:
        for work in self._works:
            work.finish()
            self._error = self._error or work.exception()
        super()._end()


class _Over(LibraryWork):
    """One for all calls that were over before anybody could wait, where the caller wants nothing else."""

    _ended = True

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True


OVER = _Over(HostTensors(), [], {}, [])


class LibraryFuture(OrderedFuture):
    """The future of a work."""

    def __init__(self, work: LibraryWork, devices: list[torch.device]) -> None:
        super().__init__(devices)
        self._work: LibraryWork | None = work
        self._of_message = work.is_message

    def settled(self) -> None:
        self._work = None  # else both would be there until the next collection of garbage

    def finish(self) -> None:
        work = self._work
        if work is not None:
            work.finish()

    def done(self) -> bool:
        work = self._work
        return (work is None or work.is_completed()) and super().done()

    def _at_once(self) -> bool:
        if not self._of_message:
            return super()._at_once()
        self.finish()
        return True


class _Completion(OwnThread):
    """The one that completes futures."""

    name = "bimetal-futures"

    def _reset(self) -> None:
        super()._reset()
        self._keys = itertools.count(1)
        self._works: dict[int, LibraryWork] = {}
        self._queue = 0

    def watch(self, work: LibraryWork) -> None:
        with self._lock:
            if self._thread is None:
                self._queue = made(lib.queue_new)
                self._start()
            key = next(self._keys)
            self._works[key] = work
        for call in work.calls():
            check(lib.queue_watch(self._queue, call, key))

    def _tell_to_end(self) -> None:
        lib.queue_put(self._queue, 0)

    def _serve(self) -> None:
        key = ctypes.c_uint64()
        while True:
            if lib.queue_next(self._queue, 3_600_000, ctypes.byref(key)) == PENDING:
                continue
            if key.value == 0:
                return
            work = self._works.get(key.value)
            if work is not None and work.is_completed():
                self._works.pop(key.value, None)
            work = None  # else its tensors would stay until the next is done


_completion = _Completion()


def stop_completing() -> None:
    running.stop()
    _completion.stop()


def look_at(pending: dict[int, LibraryWork]) -> None:
    """Lets some of them go that are done: nobody may have asked."""
    for work in list(itertools.islice(pending.values(), 4)):
        work.is_completed()
