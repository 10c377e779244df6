"""The loop around a training loop: one call of it for each epoch of the membership."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from bimetal._errors import Error, error
from bimetal.elastic.losses import forget, loss_behind
from bimetal.elastic.members import Epoch, Members
from bimetal.elastic.state import State
from bimetal.elastic.world import World

_log = logging.getLogger("bimetal.elastic")

Result = TypeVar("Result")

_IN_VAIN = 3  # losses without anybody lost and without a commit, after which it is not one


class Left(SystemExit):  # noqa: N818 (it is no error: a script that does not catch it ends with status 0)
    """``run`` raises it in a process that has left, after ``State.leave`` or SIGTERM, while the others go on."""

    def __init__(self) -> None:
        super().__init__(0)


class _Change(BaseException):  # noqa: N818 (not for the except clauses of a script)
    """All have agreed at a commit that this epoch ends."""

    def __init__(self, leaving: list[int]) -> None:
        super().__init__("the workers change")
        self.leaving = leaving


def run(train: Callable[[State], Result], state: State, *, min_workers: int | None = None, max_workers: int = 0, keeper: str = "",
        patience: float = 60.0, timeout: float = 300.0) -> Result:
    """Calls ``train(state)``, and again whenever workers were lost, have come or left, until it returns on all of them.

    ``train`` makes its DistributedDataParallel and its loader, goes on from where the state is, and calls ``state.commit()`` after its
    steps::

        def train(state):
            model = DDP(state.model)
            model.register_comm_hook(state.sampler, bimetal.sample_exact_hook)
            for epoch in range(state.sampler.next_epoch, 3):
                for inputs, targets in DataLoader(data, batch_sampler=state.sampler):
                    ...
                    state.commit()

        bimetal.elastic.run(train, state)

    The process group is made here, of the ranks that torchrun, ``bimetal launch`` or RANK and WORLD_SIZE name, unless there is one of
    this back end; without any of these it is one of this process alone. With BIMETAL_DOOR=HOST:PORT the process joins the workers
    of whom one has its door there, whatever its rank was. After ``run`` the group of the last workers is still there, and not elastic
    any more.

    Args:
        min_workers: with fewer the job waits `patience` for others, and ends. None: what ``bimetal launch --elastic=MIN`` says, or 1.
        max_workers: newcomers beyond that wait; 0: any number.
        keeper: the name of the machine on which the job goes on where half of the workers have lost the other half; empty: that of the
            first rank 0; "either": each half.
        patience: seconds for enough workers to be there, once it is known who is lost.
        timeout: seconds for a call of the process group, and for a worker that computes to come to the others.

    Returns:
        what ``train`` does.

    Raises:
        Left: in a process that has left.
        bimetal.Error: ``peer_lost`` where too few are left to go on, or another worker has failed by an error of its own, ``aborted``;
            ``unsupported`` for what cannot outlive a rank, as shards that ``state.keep`` does not know.
        Exception: what ``train`` raises that does not follow from a loss. The others then end, too.
    """
    if state._run is not None:
        raise error("this state is in a run already", "invalid_argument")
    if min_workers is None:
        min_workers = int(os.environ.get("BIMETAL_ELASTIC") or 1)
    if min_workers < 1 or 0 < max_workers < min_workers:
        raise error(f"min_workers={min_workers} and max_workers={max_workers}: at least one is needed, and no more than may be there",
                    "invalid_argument")
    state._require_usable()
    one = _Run(state, World(timeout))
    with one:
        one.begin(least=min_workers, most=max_workers, keeper=keeper, patience=patience, timeout=timeout)
        return one.train(train)


def doors() -> list[str]:
    """The addresses at which newcomers can join workers of the run in this process. Any of them is BIMETAL_DOOR for a
    newcomer. Empty outside of a run."""
    return [member.door for member in _present.epoch.members] if _present is not None and _present.epoch is not None else []


def leave() -> None:
    """This process leaves its run, if it is in one, after the next commit."""
    if _present is not None:
        _present.leaves = True


_present: _Run | None = None


class _Run:
    """A context: afterwards nobody is answered at this process's door."""

    def __init__(self, state: State, world: World) -> None:
        self.leaves = False  # this process, after the next commit
        self.epoch: Epoch | None = None
        self._state = state
        self._world = world
        self._members: Members | None = None
        self._on_term: Any = None
        self._in_vain = 0
        self._commits_then = -1

    def __enter__(self) -> None:
        global _present
        self._state._run = _present = self
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._on_term = signal.signal(signal.SIGTERM, lambda *_: self._state.leave())

    def __exit__(self, *_: object) -> None:
        global _present
        self._state._run = _present = None
        self._state._let_go()
        if self._on_term is not None:
            signal.signal(signal.SIGTERM, self._on_term)
        if self._members is not None:
            self._members.close()

    def begin(self, **how: Any) -> None:
        door = os.environ.get("BIMETAL_DOOR")
        if door:
            self._members = self._world.newcomer(door, self._state._facts(), **how)
            _log.info("waiting to be let in at %s", door)
            self.epoch = self._members.join(door)
            loss = self._meet(undo=False)
            if loss is not None:
                self._go_on(loss, [])
            return
        self._members, self.epoch = self._world.found(self._state._facts(), **how)
        self._state._begin(leads=self.epoch.rank == 0)
        if self.epoch.size < how["least"]:
            raise error(f"min_workers={how['least']}, and {self.epoch.size} have started", "invalid_argument")
        self._state._even_out(undo=False)

    def train(self, train: Callable[[State], Result]) -> Result:
        while True:
            loss: Error | None = None
            leaving: list[int] = []
            try:
                result = train(self._state)
                self._agree(ends=True)
                self._members.finish()
                return result
            except _Change as change:
                leaving = change.leaving
                forget(change)
            except KeyboardInterrupt:  # at this machine: the others go on
                self._world.abort()
                raise
            except BaseException as failure:
                loss = loss_behind(failure)
                if loss is None or not self._may_be_one(loss):
                    self._world.abort()
                    self._members.fail(f"{self.epoch.members[self.epoch.rank].name} has failed: {type(failure).__name__}: {failure}")
                    raise
                forget(failure)
            self._go_on(loss, leaving)

    def look_around(self) -> None:
        """At a commit, on all ranks."""
        waits = self._members.somebody_waits()
        self._agree(waits=waits)

    def _agree(self, waits: bool = False, ends: bool = False) -> None:
        """Shares each rank's news with all: raises _Change if this epoch is to end. Collective."""
        everyone = [torch.zeros(3, dtype=torch.int64, device="cpu") for _ in range(self.epoch.size)]
        dist.all_gather(everyone, torch.tensor([ends, waits, self.leaves], dtype=torch.int64, device="cpu"))
        told = [[bool(word) for word in one.tolist()] for one in everyone]
        if len({one[0] for one in told}) > 1:
            through = next(rank for rank, one in enumerate(told) if one[0])
            raise error(f"train() has come to its end on rank {through} while others commit: all ranks must make the same number of "
                        "steps, as a BalancedBatchSampler gives them", "call_mismatch", through)
        leaving = [rank for rank, one in enumerate(told) if one[2]]
        if not ends and (leaving or any(one[1] for one in told)):
            raise _Change(leaving)

    def _may_be_one(self, loss: Error) -> bool:
        """Whether this can still follow from a lost worker: if the same workers come again and again, nobody was
        lost."""
        again = self._state._commits == self._commits_then
        self._in_vain = self._in_vain + 1 if again and not self.epoch.lost and not self.epoch.came else 0
        self._commits_then = self._state._commits
        if self._in_vain < _IN_VAIN:
            return True
        _log.error("%d times in a row an error of a lost worker, and nobody was lost: does train() use a DistributedDataParallel or a "
                   "group that was made outside of it?", _IN_VAIN)
        return False

    def _go_on(self, loss: Error | None, leaving: list[int]) -> None:
        """To the next epoch."""
        undo = False
        while True:
            began = time.monotonic()
            undo = undo or loss is not None
            if loss is not None:
                self._world.abort()  # so that all see it at once
            self._state._let_go()
            self._world.end()
            if self.epoch.rank in leaving:
                raise Left
            gc.collect()  # a DistributedDataParallel is in circles, and its hooks are on the parameters
            self.epoch = self._members.next(loss, leaving)
            self._tell(loss)
            loss, leaving = self._meet(undo), []
            if loss is None:
                _log.warning("%d worker%s on from commit %d, after %.2f s", self.epoch.size, " goes" if self.epoch.size == 1 else "s go",
                             self._state.commits, time.monotonic() - began)
                return

    def _meet(self, undo: bool) -> Error | None:
        """The process group of a new epoch, and equal states. The loss that has come between, if one has."""
        try:
            self._world.enter(self._members, self.epoch)
            self._state._even_out(undo)
        except Exception as failure:
            loss = loss_behind(failure) or (Error(str(failure), "aborted") if not dist.is_initialized() else None)
            if loss is None or not self._may_be_one(loss):
                raise
            return loss
        return None

    def _tell(self, loss: Error | None) -> None:
        for word, members in (("lost", self.epoch.lost), ("left", self.epoch.left), ("joined", self.epoch.came)):
            if members:
                _log.warning("%s: %s%s", word, ", ".join(one.name for one in members), f" ({loss})" if word == "lost" and loss else "")
