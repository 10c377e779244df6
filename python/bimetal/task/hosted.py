"""A user's task as the program reads it: what src/bimetal/python_host calls."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import pathlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from bimetal.task.dropout import Dropout
from bimetal.task.optimizers import HostedOptimizer
from bimetal.task.task import Metric, Task
from bimetal.task.units import HostedUnit, as_tuple, from_tuple, units_of


class HostedDataset:
    """A data set as src/bimetal/python_host reads it."""

    def __init__(self, dataset: Any, collate: Callable[[list], Any] | None, weights: Any = None):
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"a data set needs __len__ and __getitem__, since every sample comes once an epoch; "
                            f"{type(dataset).__name__} lacks them")
        self._dataset = dataset
        self._collate = collate
        self.size = len(dataset)
        if self.size == 0:
            raise ValueError("a data set is empty")
        self.weights = _weights(weights if weights is not None else getattr(dataset, "weights", None), self.size)

    def batch(self, samples: list[int]) -> tuple:
        """Their tensors; the first dimension of each is the samples."""
        if self._collate is None and isinstance(self._dataset, TensorDataset):
            return tuple(self._dataset[torch.tensor(samples, dtype=torch.int64)])
        if not samples:  # of a rank that has none: the first one tells the other dimensions
            return tuple(tensor[:0] for tensor in self.batch([0]))
        batch = (self._collate or default_collate)([self._dataset[sample] for sample in samples])
        tensors = as_tuple(batch, "a batch")
        for tensor in tensors:
            if tensor.dim() == 0 or tensor.shape[0] != len(samples):
                raise ValueError(f"a batch of {len(samples)} samples has a tensor of shape {tuple(tensor.shape)}: the "
                                 f"first dimension has to be the samples")
        return tensors


def _weights(weights: Any, size: int) -> list[int]:
    """As a list; empty where all weigh 1."""
    if weights is None:
        return []
    listed = [int(weight) for weight in weights]
    if len(listed) != size:
        raise ValueError(f"there are {len(listed)} weights for {size} samples")
    if min(listed) < 1:
        raise ValueError(f"sample {listed.index(min(listed))} weighs {min(listed)}: leave it out, or give at least 1")
    return listed


def findings(model: nn.Module) -> list[str]:
    """What in the model makes a result depend on how batches are split, one thing in each text."""
    found = []
    for name, module in model.named_modules():
        what = _finding(module)
        if what:
            found.append(f"{name or 'the model'} ({type(module).__name__}) {what}")
    return found


def require_exact(model: nn.Module) -> None:
    """Raises ValueError where there are such findings."""
    found = findings(model)
    if found:
        told = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
        raise ValueError(f"the result would depend on how batches are split between devices: {told}; or accept it with "
                         f"parallel.exact = \"relaxed\"")


def _finding(module: nn.Module) -> str | None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "normalises by whatever samples are beside each other: take nn.GroupNorm"
    if isinstance(module, Dropout):
        return None
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
        return "draws from a generator of each rank: take bimetal.task.Dropout"
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0:
        return "draws its dropout from a generator of each rank: set it to 0 and put bimetal.task.Dropout beside it"
    return None


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
        self.has_optimizer = task.make_optimizer is not None
        self._models: list[weakref.ref[nn.Module]] = []
        self.facts = [*facts, f"training data = {self.training.size} samples",
                      f"test data = {self.evaluation.size if self.evaluation else 0} samples"]

    def make_units(self) -> list[HostedUnit]:
        model = self._task.make_model()
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model returned a {type(model).__name__}, not an nn.Module")
        if self._exact == "strict":
            require_exact(model)
        self._models = [made for made in self._models if made() is not None] + [weakref.ref(model)]
        return units_of(model, self._task.units)

    def make_optimizer(self, parameters: tuple) -> HostedOptimizer:
        """Over the parameters of one of the models that make_units has made."""
        for model in filter(None, (made() for made in self._models)):
            if any(parameter is parameters[0] for parameter in model.parameters()):
                return HostedOptimizer(self._task.make_optimizer(model), list(parameters))
        raise RuntimeError("the parameters belong to no model of this task")

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
