"""Shows the progress of a loop over a BalancedBatchSampler, as a job of the program does: docs/monitoring.md."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import shutil
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from bimetal import _C
from bimetal._errors import Error, error
from bimetal._heard import Heard
from bimetal._torch_check import require_torch_library
from bimetal.balance.figures import Step
from bimetal.balance.rank_log import RankLog
from bimetal.balance.sampler import BalancedBatchSampler
from bimetal.process_group import bytes_sent

_SECONDS_AT_EXIT = 1.0  # for the last step's figures
_SECONDS_TO_ASK = 1.0  # between two questions where ranks are that have not said so
_LIVE_EVERY, _PLAIN_EVERY = 0.1, 5.0  # seconds between two lines


def monitor(sampler: BalancedBatchSampler, *, loss: Callable[[], Any], epochs: int | None = None, listen: str | None = "127.0.0.1:0",
            tensorboard: str | os.PathLike[str] | None = None, progress: bool = True,
            run: str | os.PathLike[str] | None = None, settings: Mapping[str, Any] | None = None) -> Monitor:
    """Shows how a loop gets on: a line on rank 0's terminal, pages for browsers, ``bimetal top`` and Prometheus, and TensorBoard's scalars.

    To be called on every rank, before the loop, once for each sampler::

        bimetal.monitor(sampler, loss=lambda: loss, epochs=3, tensorboard="runs/scalars")
        for epoch in range(3):
            for inputs, targets in loader:
                loss = criterion(model(inputs), targets)
                loss.backward()
                ...

    Args:
        sampler: the one that the loop's DataLoader draws from.
        loss: tells this rank's loss of the step under way, a number or a tensor of one; asked when its gradients are
            exchanged. The mean over the global batch is shown. With ``accumulate`` it is the loss that ``weigh`` is
            given.
        epochs: the number that the loop runs in all; None: the time left is that of the present epoch.
        listen: HOST:PORT of the pages, on rank 0; port 0 takes a free one, which is printed; None: no pages. Beyond loopback only with
            a token (BIMETAL_TOKEN_FILE or BIMETAL_TOKEN), and for those who have it.
        tensorboard: the folder of the scalars, on rank 0's machine; None: none are written.
        progress: False leaves out the line, for loops that have one of their own.
        run: a folder of this run alone, on rank 0's machine: its ``training.json`` is what `bimetal runs` and the page's runs list, with
            those of the other folders beside it; None: there is no record.
        settings: this run's settings (learning rate, width, …), for that record: text, numbers, truths, lists of them.

    Raises:
        bimetal.Error: ``unauthorized`` for an address beyond loopback without a token; ``system`` for a port in use, or a folder that
            cannot be written.
        ImportError: on rank 0 without the torch library; it says what to install.
    """
    if not isinstance(sampler, BalancedBatchSampler):
        raise TypeError(f"bimetal.monitor() takes the loop's BalancedBatchSampler, not a {type(sampler).__name__}")
    if not callable(loss):
        raise TypeError("loss is to be a function that tells the step's loss, as in bimetal.monitor(sampler, loss=lambda: loss)")
    return Monitor(sampler, loss, epochs, listen or "", os.fspath(tensorboard or ""), progress, os.fspath(run or ""), settings or {})


def page(sampler: BalancedBatchSampler, *, loss: Callable[[], Any], epochs: int | None = None, listen: str = "127.0.0.1:0",
         run: str | os.PathLike[str] | None = None, settings: Mapping[str, Any] | None = None) -> Monitor:
    """The page of a loop for browsers, whose link rank 0 prints: ``monitor`` without the line of progress and without TensorBoard, for
    loops that have those. Arguments and errors are those of ``monitor``."""
    shown = monitor(sampler, loss=loss, epochs=epochs, listen=listen, progress=False, run=run, settings=settings)
    if shown.address:
        _write(f"page at {shown.link()} (a link for one browser)\n")
    return shown


class Monitor:
    """The monitor that ``bimetal.monitor`` makes. It ends with the process, or by ``close``, or as a context."""

    def __init__(self, sampler: BalancedBatchSampler, loss: Callable[[], Any], epochs: int | None, listen: str, tensorboard: str,
                 progress: bool, run: str, settings: Mapping[str, Any]) -> None:
        self._sampler = sampler
        self._loss = loss
        self._epochs = epochs
        self._losses: list[tuple[Any, float]] = []  # of the step under way, with the weight of each
        self._place = ""  # this rank's, once it has told the others
        self._places: dict[int, tuple[str, str]] = {}
        self._asked = -math.inf
        self._step: Step | None = None  # whose figures are not shown yet
        self._epoch = 1
        self._trains = False  # time counts
        self._core: Any = None
        self._line = _Line(progress)
        self._log = RankLog()
        self._said = 0  # how often this rank has left lines for rank 0
        self._heard: dict[int, int] = {}  # of how many of these rank 0 knows
        self._mean = (-1, 0.0, 0.0)  # an epoch, the sum of its losses so far, and their weight
        self._sent_before = self._bytes_sent()
        if sampler.rank == 0:
            require_torch_library("bimetal.monitor() on rank 0")
            self._core = _made(listen, tensorboard, sampler.counts_in, run, _as_toml(settings))
            if self.address:
                self._line.say(f"monitor at {self.address}; watch it with: bimetal top {self.address}")
                if progress:
                    self._line.say(f"page at {self.link()} (a link for one browser)")
        if sampler.watch is not None:
            sampler.watch.close()
        sampler.watch = self
        _open.add(self)

    @property
    def address(self) -> str:
        """The address of the pages, with the real port; empty on ranks other than 0, and if there are none."""
        return self._core.address if self._core else ""

    def link(self) -> str:
        """The link by which a browser opens the page, once. It is another one each time, which ends those before. Empty
        likewise."""
        return self._core.link() if self._core else ""

    def evaluated(self, loss: float = math.nan, *, data: str = "test", **metrics: float) -> None:
        """Shows figures of an evaluation, as ``monitor.evaluated(loss, accuracy=0.87)``. On other ranks than 0 it does nothing.

        Args:
            loss: the mean over that data.
            data: "test" or "validation".
            metrics: by name; those called accuracy are parts of 1.
        """
        if data not in ("test", "validation"):
            raise ValueError(f"data is \"test\" or \"validation\", not {data!r}")
        if self._core:
            self._show_step_after_a_pause()
            self._line.say(self._core.evaluated(self._epoch, float(loss), [(name, float(value)) for name, value in metrics.items()], data))

    def close(self) -> None:
        """Ends the pages, and writes the rest for TensorBoard and the record: the run is done. The loop may go on
        without it."""
        self._end(None)

    def _end(self, failure: type[BaseException] | None) -> None:
        if self._sampler.watch is self:
            self._sampler.watch = None
        _open.discard(self)
        self._log.close()
        if self._core is None:
            return
        with contextlib.suppress(RuntimeError):  # the figures of a step that has failed
            if self._step is not None and self._step.is_there_within(_SECONDS_AT_EXIT):
                self._show_step()
        self._line.clear()
        if failure is None or issubclass(failure, KeyboardInterrupt):
            self._core.end(failure is not None, self._mean[1] / self._mean[2] if self._mean[2] else math.nan)
        self._core.close()
        self._core = None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._end(kind)

    # The methods below are for the sampler.

    def begin(self) -> None:
        """Begins an epoch: time counts from here on."""
        self._trains = True
        self._show_step_after_a_pause()

    def add_loss(self, loss: Any, weight: float) -> None:
        """Adds the loss of a batch of the step under way."""
        if weight > 0:
            self._losses.append((loss.detach() if isinstance(loss, torch.Tensor) else loss, weight))

    def figures(self, weight: float, device: str) -> Iterator[float]:
        """This rank's figures, for rank 0: sum of the losses, their weight, bytes sent, and how often it has left
        lines.

        Args:
            weight: of the loss, unless ``add_loss`` has had all of them.
            device: that it computes on.
        """
        if not self._losses and weight > 0:
            self.add_loss(self._loss(), weight)
        losses, self._losses = self._losses, []
        self._tell_place(device)
        yield sum(float(loss) * weight for loss, weight in losses)
        yield float(sum(weight for _, weight in losses))
        yield self._bytes_sent() - self._sent_before
        yield self._leave_lines()

    def step_ends(self, step: Step, last: bool) -> None:
        """The step's figures are under way. last: whether it is the epoch's last."""
        if self._core is None:
            return
        self._show_step()
        self._step = step
        if last:
            self._trains = False
            self._core.stop()
            self._line.clear()

    def epoch_ends(self) -> None:
        self._show_step()

    def _show_step_after_a_pause(self) -> None:
        """As an evaluation is one, which is no time of training."""
        if self._core and self._trains:
            self._core.start()
        self._show_step()

    def _show_step(self) -> None:
        """Shows the step before. All its figures have come, or come soon: its gradients have."""
        step, self._step = self._step, None
        if step is None:
            return
        sampler, ranks = self._sampler, step.figures()
        steps = -(-len(sampler) // sampler.accumulate)
        done, self._epoch = step.epoch * steps + -(-step.end // (sampler.global_batch * sampler.accumulate)), step.epoch + 1
        epochs = max(self._epochs or 0, self._epoch)
        counted = sum(figures.loss_weight for figures in ranks)
        total = sum(figures.loss for figures in ranks)
        of, before, weight = self._mean if self._mean[0] == step.epoch else (step.epoch, 0.0, 0.0)
        self._mean = (of, before + total, weight + counted)
        with contextlib.suppress(RuntimeError):  # an error of the store ends no training
            self._set_places(len(ranks))
            self._hear([int(figures.said) for figures in ranks])
        line = self._core.step((step.epoch, epochs), (done, epochs * steps), sampler.work_of_step(),
                               total / counted if counted else math.nan, sampler.shares,
                               [(figures.work, figures.seconds, figures.waited, figures.sent, sampler.alone_rate(rank))
                                for rank, figures in enumerate(ranks)])
        if step.end == sampler.size and self._line.live:
            self._line.say(line)
        else:
            self._line.show(line)

    def _leave_lines(self) -> float:
        """Leaves this rank's new log lines for rank 0, which hears of them by the step's figures."""
        if self._core is None and dist.is_initialized() and (lines := self._log.take_due()):
            with contextlib.suppress(RuntimeError):
                dist.distributed_c10d._get_default_store().set(_log_key(dist.get_rank(), self._said), json.dumps(lines))
                self._said += 1
        return float(self._said)

    def _hear(self, said: list[int]) -> None:
        if mine := self._log.take_due():
            self._core.lines(0, self._places.get(0, ("", ""))[0], mine)
        for rank, count in enumerate(said):
            for number in range(self._heard.get(rank, 0), count):
                key = _log_key(dist.get_global_rank(self._sampler.group or dist.group.WORLD, rank), number)
                store = dist.distributed_c10d._get_default_store()
                if store.check([key]):  # or somebody else has taken it
                    self._core.lines(rank, self._places.get(rank, ("", ""))[0], [tuple(line) for line in json.loads(store.get(key))])
                    with contextlib.suppress(RuntimeError):  # of a store that forgets nothing
                        store.delete_key(key)
            self._heard[rank] = count

    def _bytes_sent(self) -> float:
        try:
            return float(bytes_sent(self._sampler.group))
        except (RuntimeError, TypeError, ValueError, AttributeError):  # another back end's group, or none
            return math.nan

    def _tell_place(self, device: str) -> None:
        """By the store of the default group, which a loop's ranks have in common; nobody waits for it."""
        if self._place:
            return
        self._place = f"{socket.gethostname()} {device or 'python'}"
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.distributed_c10d._get_default_store().set(_key(dist.get_rank()), self._place)

    def _set_places(self, ranks: int) -> None:
        if len(self._places) == ranks or time.monotonic() - self._asked < _SECONDS_TO_ASK:
            return
        self._asked = time.monotonic()
        if not dist.is_initialized():
            self._places[0] = _split(self._place)
        else:
            store, group = dist.distributed_c10d._get_default_store(), self._sampler.group or dist.group.WORLD
            for rank in range(ranks):
                key = _key(dist.get_global_rank(group, rank))
                if rank not in self._places and store.check([key]):
                    self._places[rank] = _split(store.get(key).decode(errors="replace"))
        self._core.set_workers([self._places.get(rank, ("?", "?")) for rank in range(ranks)])


class _Line:
    """On standard output: one line that is rewritten where that is a terminal, else a line every few seconds."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._shown = False
        self._next = 0.0

    @property
    def live(self) -> bool:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._wanted:
            self.clear()
            _write(text + "\n")

    def show(self, text: str) -> None:
        now = time.monotonic()
        if not self._wanted or now < self._next:
            return
        self._next = now + (_LIVE_EVERY if self.live else _PLAIN_EVERY)
        if not self.live:
            _write(text + "\n")
            return
        columns = shutil.get_terminal_size().columns - 1
        _write("\r\x1b[K" + (text if len(text) <= columns else text[:columns - 1] + "…"))
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            _write("\r\x1b[K")
            self._shown = False


def _write(text: str) -> None:
    output: Any = sys.stdout
    while isinstance(output, Heard):  # this is on the page anyway
        output = output.stream
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads any more
        output.write(text)
        output.flush()


def _made(listen: str, tensorboard: str, counts: str, run: str, settings: str) -> Any:
    try:
        return _C.LoopMonitor(listen, tensorboard, socket.gethostname(), counts, run, settings)
    except Error as refused:
        if refused.code != "unauthorized":
            raise
        raise error(f"bimetal.monitor(listen=\"{listen}\"): that is beyond loopback, and there is no token, so that anyone on the network "
                    "could watch: set BIMETAL_TOKEN_FILE or BIMETAL_TOKEN, or leave out listen", "unauthorized") from None


def _as_toml(settings: Mapping[str, Any]) -> str:
    """As a record has its job file. JSON's words for these values are TOML's, too."""
    try:
        return "".join(f"{key} = {json.dumps(value, allow_nan=False)}\n" for key, value in settings.items())
    except (TypeError, ValueError) as bad:
        raise error(f"settings are to be text, numbers, truths and lists of them: {bad}", "invalid_argument") from bad


def _key(rank: int) -> str:
    return f"bimetal_monitor/{rank}"


def _log_key(rank: int, number: int) -> str:
    return f"{_key(rank)}/log/{number}"


def _split(place: str) -> tuple[str, str]:
    host, _, device = place.rpartition(" ")
    return host, device


_open: weakref.WeakSet[Monitor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    failure = getattr(sys, "last_type", None)  # by which the interpreter ends
    for one in list(_open):
        one._end(failure)
