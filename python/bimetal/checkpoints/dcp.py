"""Folders of torch.distributed.checkpoint (DCP): of any number of ranks, as FSDP2's users, torchtitan and Lightning save them.

Written in the form of ``torch.distributed.checkpoint.state_dict``: ``{"model": …, "optim": {"state": …, "param_groups": …}}`` by
the parameters' names. Read wherever model and optimizer lie in it.
"""

from __future__ import annotations

import json
import logging
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from bimetal._errors import error
from bimetal.checkpoints import whole
from bimetal.checkpoints.whole import Whole

_METADATA = ".metadata"
_OPTIMIZERS, _MODELS = ("optim", "optimizer", "optimizers"), ("model", "state_dict", "module")
_OWN = "bimetal"  # a key of ours: where the training was
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

Path = tuple[str | int, ...]


def is_one(folder: pathlib.Path) -> bool:
    return (folder / _METADATA).is_file()


def write(saved: Whole, target: pathlib.Path) -> None:
    """A new folder. Raises bimetal.Error ``invalid_argument`` if there is something already."""
    state: dict[str, Any] = {"model": saved.model}
    if saved.kind != "none":
        learnt = {name: {field: _as_torch(field, value) for field, value in fields.items()}
                  for name, fields in saved.optimizer.items()}
        state["optim"] = {"state": learnt, "param_groups": saved.torch_groups()}
    state[_OWN] = json.dumps({"kind": saved.kind, "groups": saved.groups, "training": saved.training})
    with whole.new_folder(target) as folder, _quietly():
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def read(folder: pathlib.Path, seed: int, kind: str = "") -> Whole:
    """Unpickles: only for folders that you trust.

    Args:
        seed: of a job that is to go on, where the folder does not tell.
        kind: of the optimizer, likewise.

    Raises:
        bimetal.Error: ``invalid_argument`` where there is no model in it.
    """
    values = _read_all(folder)
    own = values.pop((_OWN,), None)
    learnt, groups, rest = _split(values)
    rooted = _model_root(rest)
    model = {name: value.clone() for path, value in rest.items() if isinstance(value, torch.Tensor) and (name := _named(path, rooted))}
    if not model:
        raise error(f"{folder} has no tensors of a model", "invalid_argument")
    found = Whole(model, learnt)
    if own is not None:
        told = json.loads(own)
        found.kind, found.groups, found.training = told["kind"], told["groups"], told["training"]
        return found
    found.groups = groups
    found.kind = kind or _kind(found)
    found.training = whole.new_training(found, seed)
    return found


def _read_all(folder: pathlib.Path) -> dict[Path, Any]:
    """Every leaf of the saved state, by its path; tensors whole, on the CPU."""
    reader = dcp.FileSystemReader(folder)
    metadata = reader.read_metadata()
    flat: dict[str, Any] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None
        for key, entry in metadata.state_dict_metadata.items()}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # else it fills a copy
    with _quietly():
        dcp.load(flat, storage_reader=reader, planner=planner, no_dist=True)
    paths = metadata.planner_data or {}
    return {tuple(paths.get(key, (key,))): value for key, value in flat.items()}


def _split(values: dict[Path, Any]) -> tuple[dict[str, dict[str, torch.Tensor]], list[dict[str, Any]], dict[Path, Any]]:
    """The optimizer's state, by parameter and field; its groups; and all else. Both forms of
    ``get_optimizer_state_dict`` are known: nested, and flat with dots."""
    learnt: dict[str, dict[str, torch.Tensor]] = {}
    groups: dict[int, dict[str, Any]] = {}
    by_name: dict[str, dict[str, Any]] = {}
    rest: dict[Path, Any] = {}
    for path, value in values.items():
        inside = _below(path, _OPTIMIZERS)
        if inside is None:
            rest[path] = value
        elif inside[0] == "state" and len(inside) == 3:
            _put(learnt, str(inside[1]), str(inside[2]), value)
        elif inside[0] == "param_groups" and len(inside) > 2:
            _set(groups.setdefault(int(inside[1]), {}), inside[2:], value)
        elif inside[0] == "param_groups" and len(inside) == 2 and isinstance(value, dict):
            groups[int(inside[1])] = value
        elif inside[0] == "param_groups" and isinstance(value, list):
            groups = dict(enumerate(value))
        elif len(inside) == 1 and str(inside[0]).startswith(("state.", "param_groups.")):
            what, _, name = str(inside[0]).partition(".")
            name, _, field = name.rpartition(".")
            if what == "state":
                _put(learnt, name, field, value)
            else:
                by_name.setdefault(_plain(name), {})[field] = value
    return learnt, _groups(groups, by_name), rest


def _groups(nested: dict[int, dict[str, Any]], by_name: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Parameters with the same options are one group where the form names no groups."""
    groups = [{**group, "params": [_plain(str(name)) for name in group.get("params", [])]}
              for _, group in sorted(nested.items())]
    for name, options in by_name.items():
        same = [group for group in groups if {**group, "params": None} == {**options, "params": None}]
        if same:
            same[0]["params"].append(name)
        else:
            groups.append({**options, "params": [name]})
    return [{key: _number(value) for key, value in group.items()} for group in groups]


def _put(learnt: dict[str, dict[str, torch.Tensor]], name: str, field: str, value: Any) -> None:
    if isinstance(value, (int, float)):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        return  # None: a field that is not in use
    learnt.setdefault(_plain(name), {})[field] = value.long() if field == "step" else value.clone()


def _set(group: dict[str, Any], path: Path, value: Any) -> None:
    """Lists are in pieces, too: ``betas``, ``params``."""
    if len(path) == 1:
        group[str(path[0])] = value
        return
    items = group.setdefault(str(path[0]), [])
    items.extend([None] * (int(path[1]) + 1 - len(items)))
    items[int(path[1])] = value


def _below(path: Path, keys: tuple[str, ...]) -> Path | None:
    """The rest of the path behind the first of the keys; None if there is none, or nothing follows."""
    for index, part in enumerate(path[:-1]):
        if part in keys:
            return path[index + 1:]
    return None


def _model_root(paths: Iterable[Path]) -> bool:
    """Whether the model's tensors are below a key of their own. In a bare ``model.state_dict()`` none are."""
    return any(_below(path, _MODELS) is not None for path in paths)


def _named(path: Path, rooted: bool) -> str:
    """A tensor's name in the model; "": it is none of it."""
    inside = _below(path, _MODELS) if rooted else path
    return _plain(".".join(map(str, inside))) if inside else ""


def _plain(name: str) -> str:
    """Without what wrappers have put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _kind(found: Whole) -> str:
    kind = whole.kind_of(found.optimizer)
    adam = kind == "adamw" and any(group.get("decoupled_weight_decay") is False for group in found.groups)
    if kind == "none" and not found.optimizer and any("momentum" in group for group in found.groups):
        return "sgd"
    return "adam" if adam else kind


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _as_torch(field: str, value: torch.Tensor) -> torch.Tensor:
    return value.float() if field == "step" else value


class _quietly(warnings.catch_warnings):
    """Without torch's warnings on intended use: one process, and no groups."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)
        return entered
