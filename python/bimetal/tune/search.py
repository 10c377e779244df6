"""The trials of a search, as a Source of runs: Optuna proposes their settings and is told their results."""

from __future__ import annotations

import itertools
import math
import pathlib
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from bimetal._errors import Error
from bimetal.pool.pool import Outcome, Run
from bimetal.runs.job import Job, as_arguments
from bimetal.tune import record
from bimetal.tune.space import Dimension
from bimetal.tune.trial import Trial, more_is_better

_OF_THE_JOB = ("invalid_argument", "unsupported")  # errors that the next trial would meet as well


@dataclass(frozen=True)
class Options:
    """The options of a search.

    Attributes:
        dimensions: the values to be searched.
        sampler: ``grid`` (every combination), ``random`` or ``tpe``.
        trials: how many; for a grid all there are.
        metric: of the reports, as is_metric has it.
        seed: of the sampler.
        folder: for the trials' folders.
        checkpoints: whether the best trial's are kept; ``every`` one's.
    """

    dimensions: Sequence[Dimension]
    sampler: str
    trials: int
    metric: str
    seed: int
    folder: pathlib.Path
    checkpoints: bool = False
    every: bool = False


class Search:
    """Trials that are trained to their end.

    Args:
        tell: is told each trial's result as a line.
    """

    counts: str | None = None  # what Trial.trained counts: epochs or steps

    def __init__(self, job: Job, options: Options, tell: Callable[[str], None]):
        self.trials: list[Trial] = []
        self.job = job
        self.options = options
        self._tell = tell
        self._ready: list[Trial] = []
        self._running: dict[str, Trial] = {}
        self._unasked = options.trials
        known = record.begin(options.folder, self._facts()) if options.every else {}
        tpe = options.sampler == "tpe"
        # TPE wants to know results before it proposes more, and then must not repeat its first draws.
        self._study = _study(options, options.seed + len(known) if tpe else options.seed)
        last = max(known, default=-1)
        while self._unasked and (not tpe or len(self.trials) <= last):
            before = known.get(len(self.trials))
            trial = self._ask(before["settings"] if tpe and before else None)
            if not (before and record.take(trial, before)):
                self._ready.append(trial)
                shutil.rmtree(trial.folder / "checkpoints", ignore_errors=True)
            elif trial.state == "failed":
                self._study.tell(trial.handle, state=TrialState.FAIL)
            else:
                self._taken_up(trial)
        if known:
            over = options.trials - self._unasked - len(self._ready)
            tell(f"going on with the search in {options.folder}: {over} of {options.trials} trials are known")

    # ---- bimetal.pool.pool.Source ----

    def waiting(self) -> list[float]:
        """First those whose settings are known."""
        return [self._samples(trial) for trial in self._ready] + [self._samples(None)] * self._unasked

    def begin(self, index: int) -> Run:
        trial = self._ready.pop(index) if index < len(self._ready) else self._ask()
        return self._run(trial)

    def ended(self, outcome: Outcome) -> None:
        trial = self._running.pop(outcome.run.name)
        if outcome.lost:
            trial.state = "waiting"
            self._tell(f"{trial.name} begins again: {outcome.failure}")
            self._again(trial)
            return
        if trial.take(outcome, self.options.metric, best_epoch=bool(self.job.value("checkpoint.keep_best"))):
            self._valued(trial)
        else:
            self._study.tell(trial.handle, state=TrialState.FAIL)
        if self.options.every:
            record.write(trial)
        self._tell(self._line(trial))
        if outcome.code in _OF_THE_JOB and all(trial.value is None for trial in self.trials):
            raise Error(f"{trial.name} ({outcome.device.name}): {outcome.failure}", outcome.code)

    # ---- what people see ----

    @property
    def best(self) -> Trial | None:
        """The best of the trials trained to their end. While there is none, the best of those that have got
        furthest."""
        valued = [trial for trial in self.trials if trial.value is not None and trial.state != "failed"]
        return min(valued, key=self.rank, default=None)

    def rank(self, trial: Trial) -> tuple[bool, int, float]:
        """Sorts trials from best to worst."""
        worth = math.inf if trial.value is None else -trial.value if more_is_better(self.options.metric) else trial.value
        return (trial.state != "done", -len(trial.rungs), worth) if trial.state != "failed" else (True, 1, math.inf)

    def summary(self) -> str:
        """One line: how far the search is."""
        over = [trial for trial in self.trials if trial.state in ("done", "failed", "paused", "stopped")]
        best = self.best
        said = f"{len(over)} of {self.options.trials} trials"
        return said + (f", best {self.options.metric} {best.value:.4f} ({best.name})" if best else "")

    # ---- for searches that stop trials ----

    def _samples(self, trial: Trial | None) -> float:
        """That a trial will train on next; None: one whose settings are not known yet."""
        return self.job.samples(trial.settings if trial else {})

    def _valued(self, trial: Trial) -> None:
        """A run has come to its end with a value."""
        trial.state = "done"
        self._study.tell(trial.handle, trial.value)
        self._drop_checkpoints()

    def _taken_up(self, trial: Trial) -> None:
        """It comes from a search that has been broken off, with a value."""
        self._study.tell(trial.handle, trial.value)

    def _facts(self) -> dict[str, Any]:
        """The facts that identify a search."""
        options = self.options
        return {"job": self.job.text, "settings": self.job.settings, "metric": options.metric, "sampler": options.sampler,
                "searched": {one.key: list(one.ends()) + [getattr(one, "log", None)] for one in options.dimensions},
                "seed": options.seed}  # but how many trials there are to be: there may be more of them

    def _again(self, trial: Trial) -> None:
        """Its device is gone."""
        self._ready.insert(0, trial)

    def _arguments(self, trial: Trial) -> list[str]:
        """The arguments of its next run, beside its settings."""
        return as_arguments([f"checkpoint.dir={'checkpoints' if self.options.checkpoints else ''}"])

    def close(self) -> None:
        """Nothing more will be run."""
        for trial in self.trials:
            if trial.state in ("waiting", "running"):
                trial.state = "stopped"

    def _run(self, trial: Trial) -> Run:
        trial.folder.mkdir(parents=True, exist_ok=True)
        name = self.job.write_to(trial.folder)
        settings = [f"{key}={value}" for key, value in trial.settings.items()]
        arguments = ["train", name, *self.job.base_arguments(), *as_arguments(settings),
                     *as_arguments(["checkpoint.every_steps=0", "checkpoint.keep=1"]), *self._arguments(trial),
                     "--report", "report.json"]
        run = Run(trial.name, trial.folder, arguments, self._samples(trial), brings=(name, "checkpoints"),
                  returns=("report.json", "checkpoints"))
        trial.state = "running"
        self._running[run.name] = trial
        return run

    def _ask(self, settings: Mapping[str, str] | None = None) -> Trial:
        """The next trial; with ``settings``: one with these."""
        self._unasked -= 1
        if settings:
            self._study.enqueue_trial({one.key: one.value_of(settings[one.key]) for one in self.options.dimensions})
        handle = self._study.ask()
        drawn = {dimension.key: dimension.suggest(handle) for dimension in self.options.dimensions}
        settings = dict(settings) if settings else drawn  # recorded settings are short already
        number = len(self.trials)
        self.trials.append(Trial(number, settings, self.options.folder / f"trial-{number:04}", handle))
        return self.trials[-1]

    def _drop_checkpoints(self) -> None:
        """Drops the checkpoints of trials that are over and not the best: disks are small."""
        if self.options.every:
            return
        for trial in self.trials:
            if trial.state in ("done", "failed") and trial is not self.best:
                shutil.rmtree(trial.folder / "checkpoints", ignore_errors=True)

    def _line(self, trial: Trial) -> str:
        words = [trial.name]
        if trial.state == "failed":
            words.append(f"failed on {trial.workers[-1]}: {trial.failure}")
        else:
            words.append(f"{self.options.metric} {trial.value:.4f}")
            if trial.trained is not None:
                words.append(f"after {trial.trained} {self.counts}")
            words.append(f"on {trial.workers[-1]}")
        return "  ".join([*words, *(f"{key}={value}" for key, value in trial.settings.items())])


def _study(options: Options, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if options.sampler != "tpe":
        sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Trials at work count as poor ones, lest all devices try the same place.
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(direction="maximize" if more_is_better(options.metric) else "minimize", sampler=sampler)
    if options.sampler == "grid":  # Optuna's own sampler of grids works under its optimize() alone
        keys = [dimension.key for dimension in options.dimensions]
        for values in itertools.product(*(dimension.ends() for dimension in options.dimensions)):
            study.enqueue_trial(dict(zip(keys, values)))
    return study
