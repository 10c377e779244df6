"""A user's task as the program reads it: units, batches of samples by their numbers, optimizers of torch.optim."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import pathlib
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from bimetal.task.task import Dropout, Metric, Task

Named = list[tuple[str, torch.Tensor]]

_CODES: dict[type, types.CodeType] = {}
_MOST_VARIANTS = 64  # of a class: shapes, with and without gradients, in training and not


@dataclasses.dataclass
class HostedUnit:
    """A unit as src/bimetal/python reads it."""

    name: str
    parameters: Named
    buffers: Named  # and parameters that are not trained
    forward: Callable[[tuple], tuple]
    train: Callable[[bool], Any]


def units_of(model: nn.Module, cut: Callable[[nn.Module], Sequence[nn.Module]] | None,
             compiled: bool = False) -> list[HostedUnit]:
    """The units of a model that ``cut`` cuts; tensors have the model's names for them, in every unit alike.
    ``compiled``: by torch.compile, each unit by itself."""
    for number, dropout in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        dropout.layer = number
    parts = _parts(model, cut)
    parameters = _names(model.named_parameters(remove_duplicate=False))
    buffers = _names(model.named_buffers(remove_duplicate=False))
    paths = {id(module): path for path, module in model.named_modules()}
    units = []
    for number, part in enumerate(parts):
        name = paths.get(id(part)) or ("model" if part is model else f"unit {number}")
        units.append(_unit(name, part, model, parameters, buffers, _compiled(part) if compiled else part))
    _require_all(units, parameters)
    return units


def as_tuple(values: Any, what: str) -> tuple:
    """Tensors as a tuple, whether one was given or several."""
    if isinstance(values, torch.Tensor):
        return (values,)
    if isinstance(values, (tuple, list)) and all(isinstance(value, torch.Tensor) for value in values):
        return tuple(values)
    raise TypeError(f"{what} is {_kind(values)}; it has to be a tensor or a tuple of tensors")


def from_tuple(values: tuple) -> Any:
    """The values as users' functions get them: a single tensor as such."""
    return values[0] if len(values) == 1 else values


def _parts(model: nn.Module, cut) -> Sequence[nn.Module]:
    if cut is not None:
        parts = list(cut(model))
        if not parts or not all(isinstance(part, nn.Module) for part in parts):
            raise TypeError("units() has to return modules, those that are called one after the other")
        return parts
    return list(model) if isinstance(model, nn.Sequential) and len(model) > 0 else [model]


def _compiled(part: nn.Module) -> Callable[..., Any]:
    """``part`` by torch.compile, which keeps compiled code by code objects, and gives up on one after some shapes and
    modes. So all modules of a class have one in common, which no other has: equal blocks are compiled once, and a model
    of many classes is compiled whole."""
    def call(*inputs: Any) -> Any:
        return part(*inputs)

    code = _CODES.setdefault(type(part), call.__code__.replace(co_name=type(part).__name__))
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_VARIANTS)
    return torch.compile(types.FunctionType(code, call.__globals__, closure=call.__closure__))


def _unit(name: str, part: nn.Module, model: nn.Module, parameters: dict, buffers: dict,
          call: Callable[..., Any]) -> HostedUnit:
    def forward(inputs: tuple, _whole: nn.Module = model) -> tuple:  # which lives as long as its units
        return as_tuple(call(*inputs), f"what {name} returns")

    trained, kept = [], []
    for path, parameter in part.named_parameters():
        named = (parameters.get(id(parameter), f"{name}.{path}"), parameter)
        (trained if parameter.requires_grad else kept).append(named)
    kept += [(buffers.get(id(buffer), f"{name}.{path}"), buffer) for path, buffer in part.named_buffers()]
    return HostedUnit(name, trained, kept, forward, part.train)


def _names(named) -> dict[int, str]:
    """Each tensor's first name."""
    names: dict[int, str] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), name)
    return names


def _require_all(units: list[HostedUnit], parameters: dict[int, str]) -> None:
    listed = {id(tensor) for unit in units for _, tensor in unit.parameters + unit.buffers}
    missing = sorted(name for tensor, name in parameters.items() if tensor not in listed)
    if missing:
        raise ValueError(f"units() leaves parameters of the model out: {', '.join(missing)}")


def _kind(values: Any) -> str:
    if isinstance(values, (tuple, list)):
        return f"a {type(values).__name__} of {', '.join(sorted({type(value).__name__ for value in values}))}"
    return f"a {type(values).__name__}"


_NUMBER = "_number"  # ends the names of fields that are numbers in the optimizer, and tensors in a checkpoint
_REST = "bimetal_rest"  # of the first parameter: what belongs to no parameter, as JSON


class HostedOptimizer:
    """As src/bimetal/python/hosted_task.cpp reads it: states are lists of {field: tensor}, one for each of
    ``parameters``."""

    def __init__(self, made: Any, parameters: list[torch.Tensor]):
        self._optimizer, self._scheduler = made if isinstance(made, (tuple, list)) else (made, None)
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            raise TypeError(f"make_optimizer returned a {type(self._optimizer).__name__}; it has to be a "
                            f"torch.optim.Optimizer, or one and its scheduler")
        self._parameters = parameters
        known = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        strangers = len(known - {id(p) for p in parameters})
        if strangers:
            raise ValueError(f"make_optimizer takes {strangers} tensors that are not trained parameters of the model")
        kind = type(self._optimizer)
        self.kind = f"{kind.__module__}.{kind.__qualname__}"

    def step(self) -> None:
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()

    def states(self) -> list[dict[str, torch.Tensor]]:
        kept = [_as_tensors(self._optimizer.state.get(parameter, {})) for parameter in self._parameters]
        rest = {"groups": [{key: value for key, value in group.items() if key != "params"}
                           for group in self._optimizer.param_groups],
                "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None}
        text = json.dumps(rest, default=_not_kept).encode()
        kept[0][_REST] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return kept

    def restore(self, states: list[dict[str, torch.Tensor]]) -> None:
        rest = json.loads(bytes(states[0].pop(_REST).tolist()))
        for parameter, fields in zip(self._parameters, states, strict=True):
            if fields:
                self._optimizer.state[parameter] = {
                    name.removesuffix(_NUMBER): tensor.item() if name.endswith(_NUMBER) else tensor.clone()
                    for name, tensor in fields.items()}
        for group, values in zip(self._optimizer.param_groups, rest["groups"], strict=True):
            group.update({key: tuple(value) if isinstance(group.get(key), tuple) else value
                          for key, value in values.items() if value is not None})
        if self._scheduler is not None and rest["scheduler"] is not None:
            self._scheduler.load_state_dict(rest["scheduler"])


def _as_tensors(fields: dict) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, (bool, int, float)):
            tensors[name + _NUMBER] = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        elif value is not None:
            raise TypeError(f"the optimizer keeps a {type(value).__name__} as {name!r}: checkpoints hold tensors and numbers")
    return tensors


def _not_kept(value: Any) -> Any:
    """Learning rates may be tensors; functions of a LambdaLR are made anew."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else None


class HostedDataset:
    """A data set as src/bimetal/python reads it."""

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
    """The parts of the model that make a result depend on how batches are split, one in each text."""
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
    return HostedTask(task, config["parallel"]["exact"], [_source_fact(module)], config["model"]["compile"])


@dataclasses.dataclass
class HostedMetric:
    name: str
    sum: Callable[[tuple, tuple], Any] | None
    of_mean: Callable[[float], float] | None


class HostedTask:
    """The attributes are those that src/bimetal/python/hosted_task.cpp asks for."""

    def __init__(self, task: Task, exact: str, facts: list[str], compiled: bool = False):
        self._task = task
        self._compiled = compiled
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
        return units_of(model, self._task.units, self._compiled)

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
