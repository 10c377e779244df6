"""What members say together, on the test set: one `bimetal evaluate`, on the fastest device."""

from __future__ import annotations

import pathlib
from typing import Any

from bimetal._errors import Error
from bimetal.ensemble.members import Kept
from bimetal.pool.pool import Outcome, Pool, Run
from bimetal.pool.screen import aligned
from bimetal.runs.job import Job

_REPORT = "report.json"
PREDICTIONS = "predictions.safetensors"


def predict(pool: Pool, kept: Kept) -> dict[str, Any]:
    """The report of the evaluation; the predictions lie in the ensemble's folder then, as PREDICTIONS.

    Raises:
        bimetal.Error: as of `bimetal evaluate`.
    """
    evaluation = _Evaluation(kept)
    pool.work_through(evaluation)
    return evaluation.report


def table(kept: Kept, report: dict[str, Any]) -> list[str]:
    """Each member's figures and those of all."""
    names = [name for name in report["ensemble"] if name.startswith("test_") and name != "test_loss"]
    rows = [["model", *(name.replace("_", " ") for name in names), "test loss"]]
    for name, figures in [*zip(kept.members, report["checkpoints"]),
                          (f"ensemble of {len(kept.members)}", report["ensemble"])]:
        told = [f"{100 * figures[key]:.2f} %" if key.endswith("accuracy") else f"{figures[key]:.4f}" for key in names]
        rows.append([name, *told, f"{figures['test_loss']:.4f}"])
    return aligned(rows, 1)


class _Evaluation:
    """A Source of one run."""

    def __init__(self, kept: Kept):
        self._kept = kept
        self.report: dict[str, Any] = {}
        self._left = 1

    def waiting(self) -> list[float]:
        return [1.0] * self._left

    def begin(self, index: int) -> Run:
        self._left = 0
        kept = self._kept
        job = Job(kept.folder / kept.job, kept.settings)
        arguments = ["evaluate", kept.job, *job.base_arguments(), "--report", _REPORT, "--predictions", PREDICTIONS]
        for checkpoint in kept.checkpoints():
            arguments += ["--checkpoint", checkpoint]
        return Run("evaluation", kept.folder, arguments, 1.0, brings=(kept.job, *kept.checkpoints()),
                   returns=(_REPORT, PREDICTIONS))

    def ended(self, outcome: Outcome) -> None:
        if outcome.lost:
            self._left = 1
            return
        if outcome.failure:
            raise Error(outcome.failure, outcome.code or "internal")
        self.report = outcome.report or {}


def copy_predictions(kept: Kept, target: pathlib.Path) -> None:
    """Where the user wants them."""
    try:
        target.write_bytes((kept.folder / PREDICTIONS).read_bytes())
    except OSError as bad:
        raise Error(f"cannot write {target}: {bad}", "system") from bad
