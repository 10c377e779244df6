"""The target of a Trainer: a job file, or a train loop in Python. Each knows how to start its ranks and how to read
their reports."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bimetal.command import program
from bimetal.ray import cluster
from bimetal.ray.attempt import Attempt
from bimetal.ray.checkpoints import Checkpoints
from bimetal.ray.cluster import WorkerRequest
from bimetal.ray.result import Event, error
from bimetal.ray.worker import Place
from bimetal.runs.job import Job

_LONGEST_TIMEOUT_S = 24 * 3600.0
_CLOSING_CHECKPOINT = re.compile(r"checkpoint \S+(; go on with --resume \S+)?$")  # of the program, at its end


@dataclass
class JobFile:
    """A job in TOML, trained by the C++ core.

    Attributes:
        name, text: of the file, read where the driver runs: no other machine needs it.
        settings: ``section.key=value`` that change it.
        directory: what relative paths in it begin at.
    """

    name: str
    text: str
    settings: list[str]
    directory: pathlib.Path
    _table: dict[str, Any] = field(repr=False, default_factory=dict)
    _report: dict[str, Any] = field(repr=False, default_factory=dict)
    _keeps: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> JobFile:
        """Raises bimetal.Error: ``invalid_argument`` for a file that can't be read or is no TOML; where the program is
        at hand also for its keys and values, which the ranks would find out otherwise."""
        file = pathlib.Path(path)
        try:
            text = file.read_text()
            table = _parse(text)
        except (OSError, ValueError) as bad:
            raise error(f"cannot read the job file {file}: {bad}", "invalid_argument") from bad
        changes = [f"{key}={_toml(value)}" for key, value in settings.items()]
        if program.is_here(program.for_jobs):
            Job(file, changes)
        return cls(file.name, text, changes, pathlib.Path.cwd(), table)

    def storage(self) -> pathlib.Path | None:
        """The job's own folder for checkpoints, if it has one: as the program chooses it."""
        folder = self._value("checkpoint", "dir")
        if folder is None:
            folder = f"runs/{pathlib.Path(self.name).stem}"
        return self.directory / folder if folder else None

    def keep(self) -> int:
        return int(self._value("checkpoint", "keep") or 2)

    def least(self) -> int:
        """Workers that go on when others are lost; 0: the job is not elastic."""
        value = str(self._value("elastic", "min_workers") or 0)
        return int(value) if value.isdigit() else 0  # the program names its fault

    def servers(self, asked: Sequence[WorkerRequest]) -> list[WorkerRequest]:
        """Requests for the parameter servers, if the job has any: these, or so many as it says on the head node.

        Raises:
            bimetal.Error: ``invalid_argument`` if it says another number of them, or none.
        """
        if self._value("parallel", "mode") != "server":
            if asked:
                raise error('servers= is for jobs with parallel.mode = "server"', "invalid_argument")
            return []
        number = self._value("servers", "count")
        if asked:
            if number is None:
                self.settings.append(f"servers.count={len(asked)}")
            elif _count(number) != len(asked):
                raise error(f"servers= has {len(asked)} requests, but servers.count is {number}", "invalid_argument")
            return [replace(request, worker=f"parameter server {index}", role="server")
                    for index, request in enumerate(asked)]
        # The job would not outlive the head node in any case.
        return [WorkerRequest({cluster.HEAD: 0.001}, worker=f"parameter server {index}", text="on the head node",
                              role="server") for index in range(_count(number or 1))]

    def start(self, attempt: Attempt, places: Sequence[Place], token: str, checkpoints: Checkpoints) -> dict[int, Any]:
        """Calls that start the ranks of these places: all of a job, or one that comes later."""
        settings = list(self.settings)
        data = self._value("data", "path")
        if data and (self.directory / data).exists():
            settings.append(f"data.path={self.directory / data}")
        if self.least():
            settings.append(f"elastic.min_workers={places[0].least}")
        readers = [place.rank for place in places if place.rank in (attempt.servers or [0]) and not place.door]
        resume = dict(zip(readers, checkpoints.place(attempt, readers)))
        self._keeps = checkpoints.folder is not None

        def own(rank: int) -> list[str]:
            folder = checkpoints.folder_at_work(attempt, attempt.lead if attempt.servers else rank, "checkpoints")
            return [*settings, f"checkpoint.dir={folder}"] if self._keeps else settings

        return {place.rank: attempt.actors[place.rank].start_job.remote(place, token, self.name, self.text, own(place.rank),
                                                                        resume.get(place.rank)) for place in places}

    def event(self, place: int, rank: int | None, said: Mapping[str, Any]) -> Event | None:
        """Args: place: of the worker. rank: 0 for the one that leads, None for the parameter server that does."""
        if said["kind"] == "line":
            # The driver names each checkpoint itself, and where it is kept.
            if self._keeps and not rank and _CLOSING_CHECKPOINT.match(said["text"]):
                return None
            return Event("line", rank, said["text"])
        if said["kind"] == "ended" and said["report"] is not None:
            self._report = said["report"]
            return None
        return Event(said["kind"], rank, "", said["metrics"]) if "metrics" in said else None

    def figures(self, facts: Sequence[Mapping[str, Any]], order: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
        """Metrics, workers and history of a Result; the workers are those there at the end, with their places."""
        report = dict(self._report)
        told = report.pop("workers", [])
        # If workers have changed: those who are there come first, in the order of their ranks, numbered as they came;
        # then the others.
        figures = dict(enumerate(told)) if report.get("changes") else {worker["rank"]: worker for worker in told}
        history = report.pop("history", [])
        return report, [{**figures.get(who["rank"], {}), **who} for who in facts], history

    def _value(self, section: str, key: str) -> Any:
        for setting in reversed(self.settings):
            name, _, value = setting.partition("=")
            if name == f"{section}.{key}":
                return _plain(value)
        return self._table.get(section, {}).get(key)


@dataclass
class TrainLoop:
    """A function that is called on every rank, with the process group made.

    Attributes:
        function: takes the config, or nothing.
        config: for it; a copy goes to every rank.
        timeout_s: of the process group.
    """

    function: Callable[..., Any]
    config: dict[str, Any]
    timeout_s: float
    _lead: int = 0
    _last: dict[int, dict[str, Any]] = field(default_factory=dict)
    _history: list[dict[str, Any]] = field(default_factory=list)

    def storage(self) -> pathlib.Path | None:
        return None

    def keep(self) -> int:
        return 2

    def least(self) -> int:
        return 0  # what bimetal.elastic.run says

    def servers(self, asked: Sequence[WorkerRequest]) -> list[WorkerRequest]:
        if asked:
            raise error("servers= is for job files, not for a train loop", "invalid_argument")
        return []

    def start(self, attempt: Attempt, places: Sequence[Place], token: str, checkpoints: Checkpoints) -> dict[int, Any]:
        """Calls that start the ranks of these places: all of a job, or one that comes later."""
        ranks = [place.rank for place in places if not place.door]  # newcomers get all from the others
        resume = checkpoints.place(attempt, ranks) or [None]
        return {place.rank: attempt.actors[place.rank].start_loop.remote(
            place, token, self.function, self.config, min(self.timeout_s, _LONGEST_TIMEOUT_S), attempt.actors[0] if place.rank else None,
            found, checkpoints.folder_at_work(attempt, place.rank, "outbox")) for place, found in zip(places, resume)}

    def event(self, place: int, rank: int | None, said: Mapping[str, Any]) -> Event | None:
        """Args: place: of the worker. rank: 0 for the one that leads."""
        if said["kind"] == "line":
            return Event("line", rank, said["text"])
        if said["kind"] != "report":
            return None
        metrics = said["metrics"]
        self._last[place] = metrics
        if rank == 0:
            self._lead = place
            self._history.append(metrics)
        text = "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in metrics.items())
        return Event("report", rank, text, metrics)

    def figures(self, facts: Sequence[Mapping[str, Any]], order: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
        """Metrics, workers and history of a Result; the workers are those there at the end, with their places."""
        workers = [{**who, "metrics": self._last.get(place, {})} for place, who in zip(order, facts)]
        return self._last.get(self._lead, {}), workers, self._history


def _parse(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise ValueError("Python 3.10 has no TOML reader of its own: pip install tomli") from None
    return tomllib.loads(text)


def _count(servers: Any) -> int:
    """The number of servers in ``servers.count``: a number, or a weight for each, perhaps as text."""
    try:
        value = _parse(f"value = {servers}")["value"] if isinstance(servers, str) else servers
        return max(1, len(value) if isinstance(value, list) else int(value))
    except (TypeError, ValueError):
        return 1  # the program names its fault


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_quoted(item) for item in value)}]"
    return str(value)


def _quoted(value: Any) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"' if isinstance(value, str) else _toml(value)


def _plain(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
