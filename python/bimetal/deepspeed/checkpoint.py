"""An engine's state on disk: safetensors and JSON, so that loading executes nothing."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from bimetal import _C
from bimetal._errors import error

if TYPE_CHECKING:
    from bimetal.deepspeed.engine import DeepSpeedEngine

_MODEL, _OPTIMIZER, _STATE, _LATEST = "model.safetensors", "optimizer.safetensors", "state.json", "latest"
_GRADIENTS = "gradients.safetensors"  # of a step that is not complete


def save(engine: DeepSpeedEngine, folder: str, tag: str, client_state: dict[str, Any]) -> bool:
    """Collective; rank 0 writes. Raises bimetal.Error on every rank if that fails."""
    failure = None
    gradients, model, optimizer = engine.summed_gradients(), _model_state(engine), _optimizer_state(engine)
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            _write(engine, pathlib.Path(folder), tag, client_state, gradients, model, optimizer)
        except Exception as bad:  # the others must learn of whatever it is
            failure = bad
    if dist.is_initialized():
        failed = torch.tensor([int(failure is not None)])
        dist.all_reduce(failed)
        if int(failed) and failure is None:
            raise error(f"rank 0 could not write the checkpoint {folder}/{tag}", "aborted", 0)
    if failure is not None:
        raise failure
    return True


def load(engine: DeepSpeedEngine, folder: str, tag: str | None, strict: bool,
         parts: dict[str, bool]) -> tuple[str | None, dict[str, Any] | None]:
    root = pathlib.Path(folder)
    if tag is None:
        if not (root / _LATEST).exists():
            return None, None
        tag = (root / _LATEST).read_text().strip()
    path = root / tag
    if not (path / _STATE).exists():
        raise error(f"{path} is no checkpoint of bimetal.deepspeed: it has no {_STATE}", "invalid_argument")
    _load_model(engine, path / _MODEL, strict)
    state = json.loads((path / _STATE).read_text())
    if parts["optimizer"]:
        _load_optimizer(engine, path, state["optimizer"])
    if parts["scheduler"] and state["scheduler"] is not None and engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(state["scheduler"])
    if parts["loop"]:
        for name, count in state["counts"].items():
            setattr(engine, name, count)
        engine.take_gradients(_safetensors().load_file(str(path / _GRADIENTS)))
        engine.config.core.restore_loss_scale(tuple(state["loss_scale"]))
        if engine.sampler is not None and state["sampler"] is not None:
            engine.sampler.load_state_dict(state["sampler"])
    return str(path), state["client_state"]


def _write(engine: DeepSpeedEngine, root: pathlib.Path, tag: str, client_state: dict[str, Any],
           gradients: dict[str, torch.Tensor], model: dict[str, torch.Tensor] | None,
           learnt: dict[str, Any]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    tensors, optimizer = _split(learnt)
    state = {"counts": {name: getattr(engine, name) for name in ("global_steps", "micro_steps", "skipped_steps")},
             "loss_scale": engine.config.core.loss_scale_state, "optimizer": optimizer,
             "scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None,
             "sampler": engine.sampler.state_dict() if engine.sampler is not None else None,
             "client_state": client_state}
    try:
        text = json.dumps(state)
    except TypeError as bad:
        raise error(f"the client state or the scheduler's cannot be written as JSON: {bad}",
                    "invalid_argument") from bad
    aside = _C.TemporaryFolder(str(root / tag))
    try:
        path = pathlib.Path(aside.path)
        _write_model(engine, model, str(path / _MODEL))
        _safetensors().save_file(tensors, str(path / _OPTIMIZER))
        _safetensors().save_file(gradients, str(path / _GRADIENTS))
        (path / _STATE).write_text(text)
        for name in (_MODEL, _OPTIMIZER, _GRADIENTS, _STATE):
            _C.sync_path(str(path / name))
        aside.move_into_place()  # also where one of this name is there: in one step where the file system swaps names
    finally:
        aside.remove()
    _C.write_file_atomically(str(root / _LATEST), tag)
    _C.remove_leftovers(str(root), "")  # only now: without such a swap one of them may be the only whole copy


def _model_state(engine: DeepSpeedEngine) -> dict[str, torch.Tensor] | None:
    """At stages 1 to 3 whole, on rank 0; None: the module has it."""
    return None if engine.shards is None else engine.shards.sharded.state_dict()


def _optimizer_state(engine: DeepSpeedEngine) -> dict[str, Any]:
    """As torch has it, whole; at stages 1 to 3 on rank 0 alone."""
    return engine.optimizer.state_dict() if engine.shards is None else engine.shards.sharded.optimizer_state_dict()


def _write_model(engine: DeepSpeedEngine, state: dict[str, torch.Tensor] | None, path: str) -> None:
    """Tied tensors once, as safetensors' save_model has them."""
    if state is None:
        _safetensors().save_model(engine.module, path)
        return
    kept: dict[int, str] = {}
    others = {}
    for name, tensor in sorted(state.items()):
        if kept.setdefault(id(tensor), name) != name:
            others[name] = kept[id(tensor)]
    _safetensors().save_file({name: state[name].contiguous() for name in kept.values()}, path, metadata=others)


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


def _split(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by "parameter's number/name", and the rest, which goes through JSON."""
    tensors, others = {}, {}
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}/{name}"] = value.contiguous()
            else:
                others[f"{number}/{name}"] = value
    return tensors, {"groups": state["param_groups"], "values": others}


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
