"""One rank of a train loop in Python, and the functions for the loop: report() and get_checkpoint()."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import io
import json
import os
import pathlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
import torch.distributed as dist

from bimetal._asked_store import AskedStore
from bimetal._devices import usable_cores
from bimetal.elastic import Left
from bimetal.ray.result import code_in, error
from bimetal.runs import folders, saved
from bimetal.runs.job_process import Mailbox


@dataclass
class LoopRun:
    """The arguments of one rank's loop.

    Attributes:
        function: of the user; takes the config, or nothing.
        config: for it.
        rank, world_size: of this process.
        worker: its device: ``cuda:0``, ``cpu:threads=2``.
        timeout: of the process group.
        store: where the ranks meet; None: this one comes later, to a job by bimetal.elastic.
        mailbox: where reports go.
        resume: a checkpoint on this machine to go on from, or None.
        outbox: where rank 0 puts checkpoints.
    """

    function: Callable[..., Any]
    config: dict[str, Any]
    rank: int
    world_size: int
    worker: str
    timeout: datetime.timedelta
    store: AskedStore | None
    mailbox: Mailbox
    resume: pathlib.Path | None
    outbox: pathlib.Path
    finished: bool = field(default=False, init=False)

    def start(self) -> None:
        """Runs the loop on a thread of its own; the mailbox hears of its end."""
        global _running
        _running = self
        threading.Thread(target=self._run, name="train_loop", daemon=True).start()

    def _run(self) -> None:
        try:
            with passed_on(self.mailbox):
                self._call()
            self.mailbox.put("ended", interrupted=False, report=None)
        except Left:
            self.mailbox.put("left")
            self.mailbox.put("ended", interrupted=False, report=None)
        except BaseException as failure:  # of any kind: a loop may call sys.exit(), and the driver waits for a word
            self.mailbox.put("failed", died=False, **_describe(failure))
        finally:
            self.finished = True

    def _call(self) -> None:
        self._set_threads()
        if self.store is not None:
            dist.init_process_group("bimetal", store=self.store, rank=self.rank, world_size=self.world_size, timeout=self.timeout)
        parameters = inspect.signature(self.function).parameters
        self.function(dict(self.config)) if parameters else self.function()
        if dist.is_initialized():
            dist.barrier()  # nobody takes down objects that others still use, above all rank 0's store
            dist.destroy_process_group()

    def _set_threads(self) -> None:
        # Ray sets OMP_NUM_THREADS to 1 where no CPU was asked for, which suits no training.
        for item in self.worker.partition(":")[2].split(","):
            key, _, value = item.partition("=")
            if key == "threads":
                torch.set_num_threads(int(value))
                return
        torch.set_num_threads(max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


_running: LoopRun | None = None


def report(metrics: dict[str, Any], checkpoint_dir: str | os.PathLike[str] | None = None) -> None:
    """Tells the driver how the loop is getting on, and hands it a checkpoint. To be called in a Trainer's train loop.

    The checkpoint is copied before this returns; the folder may be changed or removed afterwards. Not collective:
    ranks may report as often as they like, or never. Call it from one thread.

    Args:
        metrics: numbers, strings, lists and dictionaries of them; tensors of one element count as numbers.
        checkpoint_dir: a folder with whatever the loop wants to find again after a failure; rank 0's is kept, other
            ranks' are left alone. Write what it holds so that loading executes nothing: safetensors, JSON, or
            ``torch.save`` of tensors and plain containers for ``torch.load(…, weights_only=True)``.

    Raises:
        bimetal.Error: ``invalid_argument`` outside a train loop, for metrics that are none, or a folder that is not
            there; ``system`` where the copy fails.
    """
    run = _current("report")
    try:
        plain = json.loads(json.dumps(metrics, default=_plain))
    except (TypeError, ValueError) as bad:
        raise error(f"bimetal.ray.report: metrics must be numbers, strings, and lists and dictionaries of them: {bad}",
                    "invalid_argument", run.rank) from None
    if not isinstance(plain, dict):
        raise error("bimetal.ray.report: metrics must be a dictionary", "invalid_argument", run.rank)
    # With bimetal.elastic ranks change, and a newcomer has none yet.
    leads = dist.get_rank() == 0 if dist.is_initialized() else run.rank == 0 and run.store is not None
    run.mailbox.put("report", metrics=plain, leads=leads)
    if checkpoint_dir is None or not leads:
        return
    source = pathlib.Path(checkpoint_dir)
    if not source.is_dir():
        raise error(f"bimetal.ray.report: there is no folder {source}", "invalid_argument", run.rank)
    try:
        path = folders.copy_whole(source, saved.next_of_loop(run.outbox))
    except OSError as bad:
        raise error(f"the checkpoint {source} could not be copied to {run.outbox}: {bad}", "system", run.rank) from bad
    run.mailbox.put("checkpoint", path=str(path), step=None)


def get_checkpoint() -> pathlib.Path | None:
    """The checkpoint to go on from: what rank 0 handed to ``report()`` last, before a failure or in the run that the
    Trainer's ``resume=`` names. Every rank finds it, on its own machine. None: begin anew."""
    return _current("get_checkpoint").resume


def _current(what: str) -> LoopRun:
    if _running is None or _running.finished:
        raise error(f"bimetal.ray.{what}() is for the train loop of a bimetal.ray.Trainer", "invalid_argument")
    return _running


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        number = value.item()
        if isinstance(number, (int, float, bool)):
            return number
    raise TypeError(f"not {type(value).__name__}")


def _describe(failure: BaseException) -> dict[str, Any]:
    text = str(failure) or type(failure).__name__
    if isinstance(failure, dist.DistBackendError):
        code, about = getattr(failure, "code", None), getattr(failure, "rank", None)
        if code is None:
            code, about = code_in(text)
        return {"text": text, "code": code or "internal", "about": about, "own": False}
    where = "".join(traceback.format_exception(failure)).rstrip()
    return {"text": f"the train loop raised {type(failure).__name__}: {text}\n{where}",
            "code": "out_of_memory" if isinstance(failure, torch.OutOfMemoryError) else "aborted", "about": None,
            "own": True}


class Printed(io.TextIOBase):
    """Writes to another stream, and its whole lines to the mailbox as events of kind ``line``. Thread-safe.

    Of a line that is drawn over (``\\r``, as progress bars do) the last state counts.
    """

    def __init__(self, beneath: TextIO, mailbox: Mailbox):
        self._beneath = beneath
        self._mailbox = mailbox
        self._begun = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._beneath.write(text)
            *lines, begun = (self._begun + text).split("\n")
            for line in lines:
                self._put(line)
            self._begun = begun.removesuffix("\r").rpartition("\r")[2]
        return len(text)

    def flush(self) -> None:
        self._beneath.flush()

    def fileno(self) -> int:
        return self._beneath.fileno()

    def writable(self) -> bool:
        return True

    def end(self) -> None:
        """Passes on everything that has begun."""
        with self._lock:
            if self._begun:
                self._put(self._begun)
            self._begun = ""

    def _put(self, line: str) -> None:
        self._mailbox.put("line", text=line.removesuffix("\r").rpartition("\r")[2])


@contextlib.contextmanager
def passed_on(mailbox: Mailbox) -> Iterator[None]:
    """Standard output and error of this process's Python code, until the end."""
    before = sys.stdout, sys.stderr
    streams = Printed(sys.stdout, mailbox), Printed(sys.stderr, mailbox)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.end()
