"""An engine's state on disk: safetensors and JSON, so that loading executes nothing."""

from __future__ import annotations

import json
import pathlib
import shutil
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
    gradients = engine.summed_gradients()
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            _write(engine, pathlib.Path(folder), tag, client_state, gradients)
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
    _safetensors().load_model(engine.module, str(path / _MODEL), strict=strict, device=str(engine.device))
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
           gradients: dict[str, torch.Tensor]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    tensors, optimizer = _optimizer_state(engine)
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
        _safetensors().save_model(engine.module, str(path / _MODEL))
        _safetensors().save_file(tensors, str(path / _OPTIMIZER))
        _safetensors().save_file(gradients, str(path / _GRADIENTS))
        (path / _STATE).write_text(text)
        for name in (_MODEL, _OPTIMIZER, _GRADIENTS, _STATE):
            _C.sync_path(str(path / name))
        _put_in_place(aside, root / tag)
    finally:
        aside.remove()
    _C.write_file_atomically(str(root / _LATEST), tag)


def _put_in_place(aside: Any, path: pathlib.Path) -> None:
    """A checkpoint of the same name stays beside it until the new one is there."""
    before = path.with_name(path.name + ".before")
    if path.exists():
        shutil.rmtree(before, ignore_errors=True)
        path.rename(before)
    aside.move_into_place()
    shutil.rmtree(before, ignore_errors=True)


def _optimizer_state(engine: DeepSpeedEngine) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by "parameter's number/name", and the rest, which goes through JSON."""
    state = engine.optimizer.state_dict()
    tensors, others = {}, {}
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}/{name}"] = value.contiguous()
            else:
                others[f"{number}/{name}"] = value
    return tensors, {"groups": state["param_groups"], "values": others}


def _load_optimizer(engine: DeepSpeedEngine, path: pathlib.Path, saved: dict[str, Any]) -> None:
    values = _safetensors().load_file(str(path / _OPTIMIZER)) | saved["values"]
    state: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        number, name = key.split("/", 1)
        state.setdefault(int(number), {})[name] = value
    engine.optimizer.load_state_dict({"state": state, "param_groups": saved["groups"]})


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as bad:
        raise error("checkpoints are safetensors: pip install safetensors", "unsupported") from bad
    return safetensors.torch
