"""Asynchronous successive halving (ASHA): most trials stop early, the better ones go on.

L. Li, K. Jamieson, A. Rostamizadeh et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
algorithm 2. A trial pauses on each rung, by its checkpoint. Whenever a device is free, one that is among the best
1/reduction of all that have come to its rung goes on from there; if there is none, a new trial begins. Optuna's own pruner
decides once and for good as a trial comes to a rung, since Optuna cannot suspend trials; hence this rule here, and Optuna
for the settings alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optuna.trial import TrialState

from bimetal._errors import Error
from bimetal.pool.pool import Run
from bimetal.runs.job import NOMINAL_EPOCH, Job, as_arguments
from bimetal.tune.search import Options, Search
from bimetal.tune.trial import Trial, more_is_better


@dataclass(frozen=True)
class Ladder:
    """How long a trial may train until it is looked at.

    Attributes:
        key: ``train.epochs`` or ``train.steps``.
        rungs: how many of them lie behind a trial on each rung; the last is the job's own number.
        reduction: one in so many goes on.
    """

    key: str
    rungs: tuple[int, ...]
    reduction: int

    @classmethod
    def of(cls, job: Job, least: int | None, reduction: int) -> Ladder:
        """By steps where the job counts them, else by epochs. bimetal.Error where there is nothing to stop early."""
        key = "train.steps" if job.value("train.steps") else "train.epochs"
        full = job.value(key)
        if least is None:  # three rungs, as far as there is room
            least = max(1, full // reduction**2)
        if not least < full:
            raise Error(f"--asha with {key} = {full}: trials can be stopped before their end only if it is above "
                        f"--min-resource ({least})", "invalid_argument")
        rungs = []
        while least < full:
            rungs.append(least)
            least *= reduction
        return cls(key, (*rungs, full), reduction)


class Halving(Search):
    """Trials that pause on rungs."""

    def __init__(self, job: Job, options: Options, ladder: Ladder, tell: Callable[[str], None]):
        self._ladder = ladder
        self.counts = ladder.key.partition(".")[2]
        super().__init__(job, options, tell)

    def waiting(self) -> list[float]:
        return [self._samples(trial) for trial in self._promotable()] + super().waiting()

    def begin(self, index: int) -> Run:
        promotable = self._promotable()
        if index < len(promotable):
            return self._run(promotable[index])
        return super().begin(index - len(promotable))

    def close(self) -> None:
        for trial in self.trials:
            if trial.state == "paused":
                trial.state = "stopped"
                self._study.tell(trial.handle, state=TrialState.PRUNED)
        super().close()
        self._drop_checkpoints()

    def _promotable(self) -> list[Trial]:
        """Paused trials that may go on, from the highest rung down; the best first."""
        found = []
        for rung in reversed(range(len(self._ladder.rungs) - 1)):
            there = sorted((trial for trial in self.trials if len(trial.rungs) > rung),
                           key=lambda trial: self._worth(trial.rungs[rung]))
            best = there[:len(there) // self._ladder.reduction]
            found += [trial for trial in best if self._paused_on(trial, rung)]
        return found or self._last_one()

    def _last_one(self) -> list[Trial]:
        """Too few have come to a rung to choose among them, and no more will: the furthest and best goes on, so that a
        search has a winner that was trained to the end."""
        if self._running or self._ready or self._unasked or any(trial.state == "done" for trial in self.trials):
            return []
        paused = [trial for trial in self.trials if trial.state == "paused"]
        return [min(paused, key=self.rank)] if paused else []

    def _paused_on(self, trial: Trial, rung: int) -> bool:
        return trial.state == "paused" and len(trial.rungs) == rung + 1

    def _worth(self, value: float) -> float:
        return -value if more_is_better(self.options.metric) else value

    def _samples(self, trial: Trial | None) -> float:
        reached = len(trial.rungs) if trial else 0
        count = self._ladder.rungs[reached] - (self._ladder.rungs[reached - 1] if reached else 0)
        if self._ladder.key == "train.epochs":
            return float(count * NOMINAL_EPOCH)
        batch = trial.settings.get("train.global_batch") if trial else None
        return float(count * (int(batch, 0) if batch else self.job.value("train.global_batch")))

    def _arguments(self, trial: Trial) -> list[str]:
        target = self._ladder.rungs[len(trial.rungs)]
        resume = ["--resume", "checkpoints"] if trial.rungs else []
        return [*as_arguments(["checkpoint.dir=checkpoints", f"{self._ladder.key}={target}"]), *resume]

    def _valued(self, trial: Trial) -> None:
        target = self._ladder.rungs[len(trial.rungs)]
        trial.rungs.append(trial.value)
        trial.trained = target
        # Epochs that end before the steps do leave nothing to go on with.
        over = self._ladder.key == "train.steps" and trial.report.get("steps", target) < target
        if target == self._ladder.rungs[-1] or over:
            super()._valued(trial)
            return
        trial.handle.report(trial.value, target)
        trial.state = "paused"

    def _taken_up(self, trial: Trial) -> None:
        if trial.state == "done":
            super()._taken_up(trial)
        else:
            trial.handle.report(trial.value, trial.trained)

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "rungs": [self._ladder.key, *self._ladder.rungs]}

    def _again(self, trial: Trial) -> None:
        if trial.rungs:
            trial.state = "paused"
        else:
            super()._again(trial)


def fixed_by(ladder: Ladder, keys: list[str]) -> None:
    """bimetal.Error if a key is searched that the rungs set."""
    if ladder.key in keys:
        raise Error(f"{ladder.key} cannot be searched with --asha, which stops trials by it", "invalid_argument")
