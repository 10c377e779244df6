"""One collective that this rank wants, and the handle by which its caller waits for it."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bimetal._errors import Error
from bimetal._synchronize import synchronize


class Misuse(Error, ValueError):
    """A bimetal.Error with code ``invalid_argument`` that scripts written for Horovod catch, too: by ``except
    ValueError``."""

    def __init__(self, message: str):
        super().__init__(message, "invalid_argument")


_log = logging.getLogger("bimetal.horovod")


class ReduceOp(enum.IntEnum):
    """How allreduce and reducescatter combine."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product


@dataclass(frozen=True)
class Signature:
    """The facts that ranks must agree on before they exchange anything.

    Attributes:
        kind: ``allreduce``, ``allgather``, ``broadcast``, ``alltoall``, ``reducescatter`` or ``barrier``.
        name: the name by which the ranks' requests find each other.
        tensors: type and shape of each, as ("float32", (3, 4)).
        op: of reductions, a ReduceOp; root: of broadcasts. 0 where there is none.
        splits: of alltoall, how many rows go to each rank.
        prescale, postscale: factors before and after a reduction.
    """

    kind: str
    name: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    op: int = 0
    root: int = 0
    splits: tuple[int, ...] = ()
    prescale: float = 1.0
    postscale: float = 1.0

    def to_json(self) -> list[Any]:
        return [self.kind, self.name, self.tensors, self.op, self.root, self.splits, self.prescale, self.postscale]

    @staticmethod
    def from_json(parts: list[Any]) -> Signature:
        kind, name, tensors, op, root, splits, prescale, postscale = parts
        return Signature(kind, name, tuple((dtype, tuple(shape)) for dtype, shape in tensors), op, root,
                         tuple(splits), prescale, postscale)

    def __str__(self) -> str:
        of = ", ".join(f"{dtype} {shape}" for dtype, shape in self.tensors[:3])
        more = f" and {len(self.tensors) - 3} more" if len(self.tensors) > 3 else ""
        return f"{self.kind} '{self.name}'{' of ' + of if of else ''}{more}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Error(f"a rank speaks of elements of type {name!r}, which this torch does not have", "protocol_mismatch")
    return dtype


class Handle:
    """The result to come of an asynchronous operation: for ``synchronize()`` and ``poll()``. Thread-safe."""

    def __init__(self, what: str, convert: Callable[[Any], Any]):
        self._what = what
        self._convert = convert
        self._finished = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self.waiting = 0  # threads that cannot go on without it

    def finish(self, result: Any) -> None:
        self._result = result
        self._finished.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._finished.set()

    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self, warn_after: float) -> Any:
        """The result. Raises the request's error. Bounded by the group's own timeout. Every ``warn_after`` seconds it
        says what it waits for."""
        began = time.monotonic()
        self.waiting += 1
        try:
            while not self._finished.wait(warn_after):
                _log.warning("waiting for %s for %.0f s: some rank has not asked for it yet", self._what,
                             time.monotonic() - began)
        finally:
            self.waiting -= 1
        if self._error is not None:
            raise self._error
        return self._convert(self._result)


@dataclass
class Request:
    """A signature and this rank's part in it.

    ``tensors`` are the engine's own until the handle is done: it reduces or receives in place, and otherwise reads
    them. ``events`` are those behind which devices have filled them, ``asked`` the time.monotonic() of the call.
    """

    signature: Signature
    tensors: list[torch.Tensor]
    handle: Handle
    events: Sequence[Any] = field(default_factory=list)
    asked: float = field(default_factory=time.monotonic)


def make_request(kind: str, name: str, tensors: Sequence[torch.Tensor], convert: Callable[[Any], Any],
                 **more: Any) -> Request:
    """``convert`` turns the results (a list of tensors) into the caller's."""
    shapes = tuple((dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in tensors)
    signature = Signature(kind, name, shapes, **more)
    handle = Handle(f"{kind} '{name}'", convert)
    return Request(signature, [tensor.detach() for tensor in tensors], handle, _fill_events(tensors))


def _fill_events(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The events to wait for before another thread may read tensors that a device is still filling."""
    events = []
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        if device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            events.append(event)
        else:
            synchronize(device)
    return events
