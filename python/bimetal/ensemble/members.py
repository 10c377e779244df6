"""The members of an ensemble, as a Source of runs, the folder that they are kept in, and their joint figures on the
test set: one `bimetal evaluate`, on the fastest device."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from bimetal._errors import Error
from bimetal.pool import command
from bimetal.pool.command import aligned
from bimetal.pool.pool import Outcome, Pool, Run
from bimetal.runs import saved
from bimetal.runs.job import Job, as_arguments

_RECORD = "ensemble.json"
_OF_THE_JOB = ("invalid_argument", "unsupported")  # errors that the next member would meet as well


@dataclass
class Member:
    """One model.

    Attributes:
        name: of its folder.
        seed: ``train.seed``; of its samples, too, where it is bagged.
        failure: why there is no model; None: there is one, or will be.
    """

    name: str
    seed: int
    state: str = "waiting"
    seconds: float = 0.0
    worker: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    code: str | None = None


class Members:
    """A Source of one training each.

    Args:
        tell: is told each member's end as a line.
    """

    def __init__(self, job: Job, folder: pathlib.Path, count: int, bagging: bool, tell: Callable[[str], None]):
        first = job.value("train.seed")
        width = len(str(count - 1))
        self.all = [Member(f"member-{index:0{width}}", first + index) for index in range(count)]
        self._job = job
        self._folder = folder
        self._bagging = bagging
        self._tell = tell
        self._waiting = list(self.all)
        self._running: dict[str, Member] = {}

    def waiting(self) -> list[float]:
        return [self._job.samples({})] * len(self._waiting)

    def begin(self, index: int) -> Run:
        member = self._waiting.pop(index)
        member.state = "running"
        folder = self._folder / member.name
        folder.mkdir(exist_ok=True)
        name = self._job.write_to(folder)
        settings = [f"train.seed={member.seed}", "checkpoint.dir=checkpoints", "checkpoint.every_steps=0",
                    "checkpoint.keep=1"]
        if self._bagging:
            settings.append(f"data.bootstrap_seed={member.seed + 1}")  # 0 would mean none
        self._running[member.name] = member
        arguments = ["train", name, *self._job.base_arguments(), *as_arguments(settings), "--report", "report.json"]
        return Run(member.name, folder, arguments, self._job.samples({}), brings=(name,),
                   returns=("report.json", "checkpoints"))

    def ended(self, outcome: Outcome) -> None:
        member = self._running.pop(outcome.run.name)
        if outcome.lost:
            member.state = "waiting"
            self._waiting.insert(0, member)
            self._tell(f"{member.name} begins again: {outcome.failure}")
            return
        member.seconds, member.worker = outcome.seconds, outcome.device.name
        member.failure, member.code = outcome.failure, outcome.code
        if outcome.failure is None:
            member.state = "done"
            member.figures = {name: content for name, content in (outcome.report or {}).items()
                              if name not in ("workers", "history")}
            self._tell(f"{member.name}  trained on {member.worker}")
            return
        member.state = "failed"
        self._tell(f"{member.name}  failed on {member.worker}: {member.failure}")
        if outcome.code in _OF_THE_JOB and not any(other.state == "done" for other in self.all):
            raise Error(f"{member.name} ({outcome.device.name}): {outcome.failure}", outcome.code)

    def summary(self) -> str:
        """One line: how far they are."""
        over = sum(member.state in ("done", "failed") for member in self.all)
        return f"{over} of {len(self.all)} members"


@dataclass(frozen=True)
class Kept:
    """An ensemble in a folder: the facts needed to predict with it.

    Attributes:
        job: the job file's name within the folder.
        settings: what changed it.
        members: names of the folders of its models.
    """

    folder: pathlib.Path
    job: str
    settings: list[str]
    members: list[str]

    def checkpoints(self) -> list[str]:
        """The members' checkpoints, relative to the folder: the best ones if they are kept."""
        found = []
        for member in self.members:
            best = self.folder / member / "checkpoints" / saved.BEST
            found.append(f"{member}/checkpoints" + (f"/{saved.BEST}" if best.is_dir() else ""))
        return found


def exists(folder: pathlib.Path) -> bool:
    """Whether an ensemble lies there."""
    return (folder / _RECORD).exists()


def write(job: Job, folder: pathlib.Path, members: list[Member], bagging: bool) -> Kept:
    """Makes the folder one that ``read`` reads."""
    name = job.write_to(folder)
    kept = Kept(folder, name, job.settings, [member.name for member in members if member.state == "done"])
    command.write_json(folder / _RECORD, {
        "format_version": 1, "job": name, "settings": job.settings, "bagging": bagging, "members": kept.members,
        "trained": [asdict(member) for member in members]})
    return kept


def read(folder: pathlib.Path) -> Kept:
    """bimetal.Error where there is no ensemble, or a damaged one."""
    path = folder / _RECORD
    try:
        found = json.loads(path.read_text())
        kept = Kept(folder.absolute(), str(found["job"]), [str(s) for s in found["settings"]],
                    [str(name) for name in found["members"]])
    except FileNotFoundError:
        raise Error(f"there is no ensemble in {folder}: it has no {_RECORD}", "invalid_argument") from None
    except (OSError, ValueError, KeyError, TypeError) as damaged:
        raise Error(f"{path} is damaged: {damaged!r}", "corrupt_data") from damaged
    if not kept.members or any(pathlib.PurePath(name).name != name for name in [kept.job, *kept.members]):
        raise Error(f"{path} is damaged: its members are not names of folders beside it", "corrupt_data")
    return kept


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
    """Copies the predictions to the place that the user wants."""
    try:
        target.write_bytes((kept.folder / PREDICTIONS).read_bytes())
    except OSError as bad:
        raise Error(f"cannot write {target}: {bad}", "system") from bad
