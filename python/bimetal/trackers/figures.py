"""Turns the monitor's events into the items that trackers take: figures by name at a step, words, checkpoints. The
names are those of TensorBoard's scalars (docs/monitoring.md)."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterator
from typing import Any

# For a worker, beside its share; the rate's name has its unit.
_OF_WORKER = ("memory_bytes", "wait_part", "bytes_per_s", "staleness")
_OF_JOB = ("efficiency", "learning_rate", "loss_scale")
_WORDS = {"notice": "info", "lost": "warn", "left": "info", "joined": "info"}


@dataclasses.dataclass
class Figures:
    """Values at a step, and the Unix time of that."""

    step: int
    at: float
    values: dict[str, float]


@dataclasses.dataclass
class Words:
    step: int
    title: str
    text: str
    level: str  # "info" or "warn"


@dataclasses.dataclass
class Checkpoint:
    step: int
    path: str


Item = Figures | Words | Checkpoint


class Run:
    """
    Args:
        checkpoints: the folder of those that are to be handed on; empty: none are.
    """

    def __init__(self, checkpoints: str = ""):
        self._checkpoints = checkpoints
        self._counts = "samples"
        self._step = 0  # the last whose figures were given
        self._evaluated: set[tuple[int, str]] = set()
        self._event = (0.0, "")  # the last that was given

    def take(self, kind: str, data: Any) -> list[Item]:
        """The news in an event of the monitor, by step."""
        if kind == "status":
            self._counts = data["counts"]
            return list(self._status(data))
        if kind not in ("history", "news"):
            return []
        items: list[Item] = [*self._evaluations(data.get("evaluations", [])), *self._events(data.get("events", []))]
        if kind == "history":
            items += self._points(data["points"])
        return sorted(items, key=lambda item: item.step)

    def _points(self, points: dict[str, list[Any]]) -> Iterator[Item]:
        for place, step in enumerate(points["step"]):
            if step > self._step:
                values = {name: points[name][place] for name in ("loss", *_OF_JOB)}
                values[f"{self._counts}_per_s"] = points["samples_per_s"][place]
                values |= {f"share/rank_{rank}": share for rank, share in enumerate(points["shares"][place])}
                self._step = step
                yield Figures(step, points["at"][place], _known(values))

    def _status(self, status: dict[str, Any]) -> Iterator[Item]:
        if status["step"] <= self._step:
            return
        self._step = status["step"]
        rate = f"{self._counts}_per_s"
        values = {"loss": status["loss"], rate: status["samples_per_s"]} | {name: status[name] for name in _OF_JOB}
        for worker in status["workers"]:
            if not worker["gone"]:
                rank = f"rank_{worker['rank']}"
                values[f"share/{rank}"] = worker["share"]
                values[f"worker_{rate}/{rank}"] = worker["samples_per_s"]
                values |= {f"{name}/{rank}": worker[name] for name in _OF_WORKER}
        yield Figures(self._step, time.time() - (status["since_step_s"] or 0), _known(values))

    def _evaluations(self, evaluations: list[dict[str, Any]]) -> Iterator[Item]:
        for one in evaluations:
            if (key := (one["step"], one["data"])) not in self._evaluated:
                self._evaluated.add(key)
                values = {"loss": one["loss"]} | one["metrics"]
                yield Figures(one["step"], one["at"], _known({f"{one['data']}_{name}": value for name, value in values.items()}))

    def _events(self, events: list[dict[str, Any]]) -> Iterator[Item]:
        for event in events:
            if (event["at"], event["text"]) <= self._event and event["at"] <= self._event[0]:
                continue
            self._event = (event["at"], event["text"])
            if event["kind"] in _WORDS:
                yield Words(event["step"], event["kind"], event["text"], _WORDS[event["kind"]])
            elif event["kind"] == "checkpoint" and self._checkpoints:
                # One that is gone by now was not to be kept.
                path = os.path.join(self._checkpoints, f"step-{event['step']:08d}")
                if os.path.isdir(path):
                    yield Checkpoint(event["step"], path)


def _known(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
