"""DeepSpeed's universal checkpoints, as its ``ds_to_universal.py`` writes them and an engine with ``"checkpoint":
{"load_universal": true}`` reads them at ZeRO's stages 1 to 3: a folder of checkpoints with ``latest_universal``, in which each
parameter has a folder of its own, in float32.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch

from bimetal._errors import error
from bimetal.checkpoints import plain_pickle, whole
from bimetal.checkpoints.whole import Whole

_LATEST, _ZERO, _OWN = "latest_universal", "zero", "bimetal.json"
_WEIGHT, _STEP, _PARAM = "fp32", "step", "param"
_WRITER = "0.19.8"  # the DeepSpeed whose engine reads them back in tests/deepspeed
_LAYOUT = 0.4  # of universal checkpoints
# Engines look for the second at stage 3, and for the first otherwise.
_MODEL_FILES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def is_one(folder: pathlib.Path) -> bool:
    return (folder / _LATEST).is_file() or (folder / _ZERO).is_dir()


def write(saved: Whole, target: pathlib.Path) -> None:
    """A new folder with one checkpoint.

    Raises:
        bimetal.Error: ``invalid_argument`` if there is something already, ``unsupported`` where float32 is not enough.
    """
    _require_float32(saved)
    tag = f"global_step{saved.step}_universal"
    with whole.new_folder(target) as folder:
        inside = folder / tag / _ZERO
        inside.mkdir(parents=True)
        parameters = list(saved.optimizer) or list(saved.model)
        for name in parameters:
            _write_parameter(inside / name, saved.model[name], saved.optimizer.get(name, {}))
        groups = [{**group, "params": []} for group in saved.torch_groups()]
        learnt = {"state": {0: {_STEP: torch.tensor(float(saved.step))}}, "param_groups": groups}
        torch.save({"optimizer_state_dict": learnt, "param_groups": groups, "ds_version": _WRITER}, inside / "optimizer_state.pt")
        for name, module in zip(_MODEL_FILES, (saved.model, None), strict=True):
            torch.save({**_facts(saved, parameters), "module": module}, folder / tag / name)
        own = {"kind": saved.kind, "groups": saved.groups, "training": saved.training}
        (folder / tag / _OWN).write_text(json.dumps(own))
        (folder / _LATEST).write_text(tag)


def read(folder: pathlib.Path, seed: int, kind: str = "") -> Whole:
    """Executes nothing from the folder.

    Args:
        folder: a checkpoint, or a folder with ``latest_universal``.
        seed: of a job that is to go on, where the folder does not tell.
        kind: of the optimizer, likewise: "adamw" for Adam's states if it is not given, since they are the same.

    Raises:
        bimetal.Error: ``invalid_argument`` where there is none.
    """
    path = _find(folder)
    model, learnt = {}, {}
    for file in sorted(path.glob(f"{_ZERO}/**/{_WEIGHT}.pt")):
        name = file.parent.relative_to(path / _ZERO).as_posix()
        model[name] = _tensor(file)
        learnt[name] = {other.stem: _tensor(other) for other in sorted(file.parent.glob("*.pt")) if other.stem != _WEIGHT}
    if not model:
        raise error(f"{path / _ZERO} has no parameters", "invalid_argument")
    shared = plain_pickle.load(path / _ZERO / "optimizer_state.pt")
    learnt = {name: _with_step(fields, shared) for name, fields in learnt.items() if fields}
    buffers, shapes = _from_model_files(path, model)
    for name, shape in shapes.items():  # of stage 3 all is flat
        model[name] = _shaped(model[name], shape)
        learnt[name] = {field: value if field == _STEP else _shaped(value, shape) for field, value in learnt.get(name, {}).items()}
    found = Whole({**model, **buffers}, learnt)
    own = path / _OWN
    if own.is_file():
        told = json.loads(own.read_text())
        found.kind, found.groups, found.training = told["kind"], told["groups"], told["training"]
    else:
        found.kind = kind or whole.kind_of(learnt)
        found.groups = _groups(shared.get("param_groups", []), found)
        found.training = whole.new_training(found, seed)
    return found


def _find(folder: pathlib.Path) -> pathlib.Path:
    if (folder / _ZERO).is_dir():
        return folder
    path = folder / (folder / _LATEST).read_text().strip()
    if not (path / _ZERO).is_dir():
        raise error(f"{folder / _LATEST} names {path.name}, which is not there", "invalid_argument")
    return path


def _require_float32(saved: Whole) -> None:
    for name, value in saved.model.items():
        if value.dtype == torch.float64:
            raise error(f"{name} is of float64, and universal checkpoints are of float32: --format dcp keeps all of it",
                        "unsupported")


def _write_parameter(folder: pathlib.Path, value: torch.Tensor, fields: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    torch.save({_PARAM: value.detach().float().clone()}, folder / f"{_WEIGHT}.pt")
    for field, learnt in fields.items():
        kept = torch.tensor(float(learnt)) if field == _STEP else {_PARAM: learnt.detach().float().clone()}
        torch.save(kept, folder / f"{field}.pt")


def _facts(saved: Whole, parameters: list[str]) -> dict[str, Any]:
    """The facts that engines expect in the files beside the parameters."""
    shapes = {name: saved.model[name].shape for name in parameters}
    batch = saved.training.get("state", {}).get("global_batch", 0)
    return {"buffer_names": [name for name in saved.model if name not in shapes], "optimizer": None,
            "param_shapes": [shapes], "frozen_param_shapes": None, "frozen_param_fragments": None,
            "lr_scheduler": {"last_batch_iteration": saved.step - 1}, "data_sampler": None, "random_ltd": None,
            "sparse_tensor_module_names": [], "skipped_steps": 0, "global_steps": saved.step,
            "global_samples": saved.step * batch, "dp_world_size": 1, "mp_world_size": 1, "ds_config": {},
            "ds_version": _WRITER, "universal_checkpoint_info": {"universal_checkpoint_version": _LAYOUT}}


def _tensor(file: pathlib.Path) -> torch.Tensor:
    value = plain_pickle.load(file)
    return torch.as_tensor(value[_PARAM] if isinstance(value, dict) else value)


def _with_step(fields: dict[str, torch.Tensor], shared: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Stage 3 has one count for all parameters."""
    counts = [fields.get(_STEP), *(state.get(_STEP) for state in shared.get("optimizer_state_dict", {}).get("state", {}).values())]
    count = next((count for count in counts if count is not None), None)
    return fields if count is None else {**fields, _STEP: torch.as_tensor(count).long().reshape(())}


def _from_model_files(path: pathlib.Path, parameters: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Buffers, where there are any, and the parameters' shapes."""
    buffers: dict[str, torch.Tensor] = {}
    shapes: dict[str, Any] = {}
    for file in (path / name for name in _MODEL_FILES):
        if file.is_file():
            state = plain_pickle.load(file)
            named = {name: value for name, value in (state.get("module") or {}).items() if isinstance(value, torch.Tensor)}
            buffers.update((name, value) for name, value in named.items() if name not in parameters)
            for group in state.get("param_shapes") or []:
                shapes.update((name, shape) for name, shape in group.items() if name in parameters)
    return buffers, shapes


def _shaped(values: torch.Tensor, shape: Any) -> torch.Tensor:
    """The values without the padding that made every rank's part equal."""
    return values.reshape(-1)[:torch.Size(shape).numel()].clone().view(shape)


def _groups(stored: list[dict[str, Any]], found: Whole) -> list[dict[str, Any]]:
    """Names of parameters are in no universal checkpoint: with several groups nobody can tell which has which."""
    if len(stored) != 1 or not found.optimizer:
        return []
    known = found.torch_groups()[0]
    return [{**{key: value for key, value in stored[0].items() if key in known}, "params": list(found.optimizer)}]
