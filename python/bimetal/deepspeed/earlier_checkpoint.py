"""Checkpoints that rank 0 wrote whole, as releases before those in slices did: they are read, and no longer written."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from bimetal._errors import error

if TYPE_CHECKING:
    from bimetal.deepspeed.engine import DeepSpeedEngine

_MODEL, _OPTIMIZER, _GRADIENTS, _STATE = ("model.safetensors", "optimizer.safetensors", "gradients.safetensors",
                                          "state.json")


def is_one(state: pathlib.Path) -> bool:
    """Args: state: a checkpoint's state.json, which may be damaged: who reads it says so."""
    try:
        said = json.loads(state.read_text())
    except ValueError:
        return False
    return isinstance(said, dict) and "format_version" not in said and "counts" in said


def load(engine: DeepSpeedEngine, path: pathlib.Path, strict: bool, parts: dict[str, bool]) -> dict[str, Any]:
    """Every rank reads its part of what it must see. Returns what the loop wants to find again."""
    _load_model(engine, path / _MODEL, strict)
    state = json.loads((path / _STATE).read_text())
    if parts["optimizer"]:
        _load_optimizer(engine, path, state["optimizer"])
    if parts["loop"]:
        engine.take_whole_gradients(_safetensors().load_file(str(path / _GRADIENTS)))
    return state


def _load_model(engine: DeepSpeedEngine, path: pathlib.Path, strict: bool) -> None:
    if engine.shards is None:
        _safetensors().load_model(engine.module, str(path), strict=strict, device=str(engine.device))
        return
    if not strict:
        raise error("load_module_strict=False is possible at stage 0 alone", "unsupported")
    sharded = engine.shards.sharded
    with _open(path) as file:
        sharded.load_state_dict(_SavedModel(file, sharded.kept_state()))


class _SavedModel(Mapping):
    """A file's tensors by all names that the module has for them, read when they are asked for."""

    def __init__(self, file: Any, kept: dict[str, Any]):
        stored = set(file.keys())
        names: dict[int, str] = {id(value): name for name, value in kept.items() if name in stored}
        self._file = file
        self._stored = {name: names[id(value)] for name, value in kept.items() if id(value) in names}
        self._stored.update({name: name for name in stored if name not in self._stored})

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(self._stored[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _SavedStates(Mapping):
    """What an optimizer knew of each parameter, by its number, read when it is asked for."""

    def __init__(self, file: Any, values: dict[str, Any]):
        self._file, self._values = file, values
        self._fields: dict[int, list[str]] = {}
        for key in [*file.keys(), *values]:
            number, field = key.split("/", 1)
            self._fields.setdefault(int(number), []).append(field)

    def __getitem__(self, number: int) -> dict[str, Any]:
        keys = {field: f"{number}/{field}" for field in self._fields[number]}
        return {field: self._values[key] if key in self._values else self._file.get_tensor(key)
                for field, key in keys.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _load_optimizer(engine: DeepSpeedEngine, path: pathlib.Path, saved: dict[str, Any]) -> None:
    with _open(path / _OPTIMIZER) as file:
        states = _SavedStates(file, saved["values"])
        if engine.shards is None:
            engine.optimizer.load_state_dict({"state": dict(states), "param_groups": saved["groups"]})
        else:
            engine.shards.sharded.load_optimizer_state_dict({"state": states, "param_groups": saved["groups"]})


def _open(path: pathlib.Path) -> Any:
    _safetensors()
    import safetensors
    return safetensors.safe_open(str(path), framework="pt")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as bad:
        raise error("checkpoints are safetensors: pip install safetensors", "unsupported") from bad
    return safetensors.torch
