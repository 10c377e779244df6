"""Optimizers and schedulers of torch.optim as the program steps and saves them."""

from __future__ import annotations

import json
from typing import Any

import torch

_NUMBER = "_number"  # ends the names of fields that are numbers in the optimizer, and tensors in a checkpoint
_REST = "bimetal_rest"  # of the first parameter: what belongs to no parameter, as JSON


class HostedOptimizer:
    """As src/bimetal/python_host/hosted_optimizer.cpp reads it: states are lists of {field: tensor}, one for each of
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
