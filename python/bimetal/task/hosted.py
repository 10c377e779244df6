"""A user's task as the program reads it: what src/bimetal/python_host calls."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import pathlib
from collections.abc import Callable
from typing import Any

from torch import nn

from bimetal.task.datasets import HostedDataset
from bimetal.task.exactness import require_exact
from bimetal.task.task import Metric, Task
from bimetal.task.units import HostedUnit, as_tuple, from_tuple, units_of


def load(spec: str, job: str) -> HostedTask:
    """The task that ``package.module:function`` makes, given the job (JSON) as a dict of dicts."""
    module_name, colon, function_name = spec.partition(":")
    if not colon or not module_name or not function_name:
        raise ValueError(f"{spec!r} is not of the form package.module:function")
    module = importlib.import_module(module_name)
    make_task = getattr(module, function_name, None)
    if not callable(make_task):
        raise ValueError(f"{module_name} ({module.__file__}) has no function {function_name}")
    config = json.loads(job)
    task = make_task(config) if inspect.signature(make_task).parameters else make_task()
    if not isinstance(task, Task):
        raise TypeError(f"{spec} returned a {type(task).__name__}, not a bimetal.task.Task")
    return HostedTask(task, config["parallel"]["exact"], [_source_fact(module)])


@dataclasses.dataclass
class HostedMetric:
    name: str
    sum: Callable[[tuple, tuple], Any] | None
    of_mean: Callable[[float], float] | None


class HostedTask:
    """The attributes are those that src/bimetal/python_host/hosted_task.cpp asks for."""

    def __init__(self, task: Task, exact: str, facts: list[str]):
        self._task = task
        self._exact = exact
        self.training = HostedDataset(task.training, task.collate, task.weights)
        self.evaluation = None if task.evaluation is None else HostedDataset(task.evaluation, task.collate)
        self.metrics = [_metric(name, metric) for name, metric in task.metrics.items()]
        self.counts = task.counts
        self.facts = [*facts, f"training data = {self.training.size} samples",
                      f"test data = {self.evaluation.size if self.evaluation else 0} samples"]

    def make_units(self) -> list[HostedUnit]:
        model = self._task.make_model()
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model returned a {type(model).__name__}, not an nn.Module")
        if self._exact == "strict":
            require_exact(model)
        return units_of(model, self._task.units)

    def inputs(self, batch: tuple) -> tuple:
        if self._task.inputs is None:
            return batch[:-1]
        return as_tuple(self._task.inputs(batch), "what inputs() returns")

    def loss_sum(self, outputs: tuple, batch: tuple) -> Any:
        loss = self._task.loss_sum(from_tuple(outputs), batch)
        if loss.numel() != 1:
            raise ValueError(f"loss_sum returned a tensor of shape {tuple(loss.shape)}: it has to be one number, the sum "
                             f"over the batch (reduction=\"sum\")")
        return loss.reshape(())


def _metric(name: str, metric: Metric | Callable[[Any, Any], Any]) -> HostedMetric:
    given = metric if isinstance(metric, Metric) else Metric(sum=metric)
    total = given.sum
    return HostedMetric(name, total and (lambda outputs, batch: total(from_tuple(outputs), batch)), given.of_mean)


def _source_fact(module: Any) -> str:
    """So that ranks with other versions of the user's file are noticed; line ends may differ."""
    file = inspect.getsourcefile(module)
    if file is None:
        return f"task = {module.__name__}"
    text = pathlib.Path(file).read_text(encoding="utf-8")
    return f"task = {pathlib.Path(file).name}, digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"
