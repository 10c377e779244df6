"""One trial: settings, and their results."""

from __future__ import annotations

import json
import math
import pathlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bimetal.pool.pool import Outcome

if TYPE_CHECKING:
    import optuna



def is_metric(name: str) -> bool:
    """Whether reports may have it: the training loss, or whatever the job's task tells of validation or test data."""
    data, _, figure = name.partition("_")
    return name == "train_loss" or (data in ("validation", "test") and figure.isidentifier())


def more_is_better(metric: str) -> bool:
    """True for accuracies. For losses, perplexities and the like less is better."""
    return metric.endswith("accuracy")


@dataclass
class Trial:
    """A trial.

    Attributes:
        number: from 0, in the order of their making.
        settings: values by key, as after ``--set``.
        folder: of its reports and checkpoints.
        state: ``waiting``, ``running``, ``paused`` (on a rung), ``done``, ``failed`` or ``stopped`` (before its end).
        value: of the metric, when it was last measured.
        trained: epochs or steps that are behind it, if the search counts them.
        seconds: that its runs have taken.
        workers: on which they ran.
        rungs: the value on each rung that it has come to.
        report: the program's, of its last run.
        failure, code: why it failed, and the code of that as in bimetal.Error.
        handle: Optuna's.
    """

    number: int
    settings: dict[str, str]
    folder: pathlib.Path
    handle: optuna.Trial
    state: str = "waiting"
    value: float | None = None
    trained: int | None = None
    seconds: float = 0.0
    workers: list[str] = field(default_factory=list)
    rungs: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    code: str | None = None

    @property
    def name(self) -> str:
        return f"trial {self.number}"

    def take(self, outcome: Outcome, metric: str, *, best_epoch: bool = False) -> bool:
        """Whether the run has come to a value, of its best epoch where that is the checkpoint kept; if not, the trial has
        failed."""
        self.seconds += outcome.seconds
        self.workers.append(outcome.device.name)
        self.failure, self.code = outcome.failure, outcome.code
        if self.failure is None:
            self.report = {name: content for name, content in (outcome.report or {}).items()
                           if name not in ("workers", "history")}
            best = self.report.get("best") if best_epoch and metric.startswith("validation_") else None
            value = (best or self.report).get(metric)
            if value is None or not math.isfinite(value):
                self.failure, self.code = f"its report has no {metric}", "not_finite"
            else:
                self.value = value
        if self.failure is not None:
            self.state = "failed"
        return self.failure is None

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {"number": self.number, "state": self.state, "value": self.value, "rungs": self.rungs,
                "settings": {key: _plain(value) for key, value in self.settings.items()}, "trained": self.trained,
                "seconds": self.seconds, "workers": self.workers, "figures": self.report, "error": self.failure}


def _plain(text: str) -> Any:
    """A setting as JSON has it: a number where it is one."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if not isinstance(value, float) or math.isfinite(value) else text
