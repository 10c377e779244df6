"""Callbacks of futures that may make calls of their own.

Calls must come in one order on all ranks, and when a call ends is not the same on all. So these callbacks run one after the other, in the
order in which they were attached, on a thread of this process. The calls that they make go through a group of the same ranks beside the
one that they name (process_group.py), whose order is that of the callbacks, whatever the program calls meanwhile. So nobody waits for a
call in order to attach a callback to it, but for futures of tensors on a device: there the one who attaches waits until the callback has
run, as no device has shown yet what its streams make of the other way.
"""

from __future__ import annotations

import abc
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from bimetal.library.interface import error

# Modules whose callbacks only compute: they run where a future is completed.
_ONLY_COMPUTE = {"torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "bimetal.balance.hook"}


def only_computes(callback: Callable[[Any], Any]) -> bool:
    return getattr(callback, "__module__", None) in _ONLY_COMPUTE


class Failed:
    """A future's value in the place of results that failed to come. Torch tells only Python of such futures. Its
    reducer, in C++, looks for tensors in the value, by pickling it, and takes the first one unseen: it is told here. A
    future of a device's tensors does so, too, when it is completed. It would keep no more than an error's text: it
    finds none."""

    def __init__(self, problem: BaseException, completes: bool) -> None:
        self._problem, self._completes = problem, completes

    def tell(self) -> Any:
        raise self._problem.with_traceback(None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._completes:
            self._completes = False
            return tuple, ()
        return self.tell()


class OrderedFuture(torch.futures.Future):
    """One whose callbacks have the order in which they were attached."""

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__(devices=devices)
        self._devices = devices

    def finish(self) -> None:
        """Waits until it is done, without raising its error."""
        if super().done():
            return
        if running.here():
            raise error("a callback waits for a callback that was attached after it, which runs only when this one has ended",
                        "invalid_argument")
        try:
            super().wait()
        except Exception:  # noqa: BLE001, S110 (who asks for the value gets it)
            pass

    def fail(self, problem: BaseException) -> None:
        self._set_unwrap_func(Failed.tell)  # which torch's set_exception() is made of, too
        self.set_result(Failed(problem, bool(self._devices)))

    def wait(self) -> Any:
        self.finish()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        if only_computes(callback) or self._at_once():
            return super().then(callback)
        after = OrderedFuture(self._devices)

        def run() -> None:
            self.finish()
            try:
                after.set_result(super(OrderedFuture, self).then(callback).wait())
            except Exception as problem:  # noqa: BLE001 (the waiting thread gets it)
                after.fail(problem)
        running.add(run)
        if self._devices:
            after.finish()
        return after

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if only_computes(callback) or self._at_once():
            super().add_done_callback(callback)
            return

        over = threading.Event()

        def run() -> None:
            try:
                self.finish()
                super(OrderedFuture, self).add_done_callback(callback)
            finally:
                over.set()
        running.add(run)
        if self._devices:
            over.wait()

    def _at_once(self) -> bool:
        """Within a callback, for work that can be waited for there: all ranks come here in the same order, too."""
        if not running.here():
            return False
        self.finish()
        return True


class OwnThread(abc.ABC):
    """A thread of this process, from the first thing on that there is for it to do."""

    name: str

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)  # which has no such thread

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The thread must not come back from the core while the interpreter ends. The groups are closed, so that nothing lasts."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._tell_to_end()
            thread.join(2.0)

    @abc.abstractmethod
    def _serve(self) -> None: ...

    @abc.abstractmethod
    def _tell_to_end(self) -> None: ...


class _Running(OwnThread):
    """The one that runs them."""

    name = "bimetal-callbacks"

    def _reset(self) -> None:
        super()._reset()
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.ident = 0  # of the thread; 0 before the first callback

    def here(self) -> bool:
        """Whether the caller is a callback."""
        return self.ident != 0 and self.ident == threading.get_ident()

    def add(self, run: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._start()
            self._todo.put(run)

    def settle(self, seconds: float) -> None:
        """Until those that are there have run; no longer than that."""
        if self._thread is not None and self._thread.is_alive() and not self.here():
            over = threading.Event()
            self.add(over.set)
            over.wait(seconds)

    def _tell_to_end(self) -> None:
        self._todo.put(None)

    def _serve(self) -> None:
        self.ident = threading.get_ident()
        while (run := self._todo.get()) is not None:
            try:
                run()
            except Exception:  # noqa: BLE001
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))  # type: ignore[arg-type]
            run = None  # else its tensors would stay until the next


running = _Running()
