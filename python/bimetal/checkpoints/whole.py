"""A checkpoint's tensors in this process's memory, whole, whatever form the folder has."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import torch

from bimetal._errors import error
from bimetal.runs import folders, saved
from bimetal.zero.slices import GRADIENT, fields_of

_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_OWN = ("format_version", "sequence", "optimizer", "files", "slices", "sha256")  # of one folder; the rest is the training's
# The fields by which a kind is known. AdamW has Adam's.
_KINDS = {frozenset(["momentum_buffer"]): "sgd", frozenset(["exp_avg", "exp_avg_sq"]): "adamw"}
_DEFAULTS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclasses.dataclass
class Whole:
    """
    Attributes:
        model: parameters and buffers, on the CPU, by name.
        optimizer: its state of each parameter, by field; ``step`` is an int64 scalar.
        kind: "adam", "adamw", "sgd", … as in state.json; "none": there is none.
        groups: hyper-parameters of each parameter group, with the names of its ``params``.
        training: the rest of state.json, so that a job goes on from where it was: ``state``, ``model``, ``loop``, ….
    """

    model: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]]
    kind: str = "none"
    groups: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    training: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        counted = [int(fields["step"]) for fields in self.optimizer.values() if "step" in fields]
        return max([int(self.training.get("state", {}).get("step", 0)), *counted])

    def torch_groups(self) -> list[dict[str, Any]]:
        """As torch's own optimizer of that kind would have them: its defaults where nothing is said."""
        groups = self.groups or [{"params": list(self.optimizer)}]
        make = _DEFAULTS.get(self.kind)
        defaults = make([torch.zeros(1)]).param_groups[0] if make else {}
        return [{**defaults, **group} for group in groups]


def read(path: pathlib.Path) -> Whole:
    """A checkpoint, or the newest of a folder of them.

    Raises:
        bimetal.Error: ``invalid_argument`` if there is none, ``corrupt_data`` if it is damaged, ``unsupported`` if it was
            saved in the midst of a step, which no other form has room for.
    """
    path = path if (path / _STATE).exists() else saved.newest(path) or path
    try:
        manifest = saved.read_checked(path)
    except FileNotFoundError as bad:
        raise error(f"there is no checkpoint in {path}", "invalid_argument") from bad
    except ValueError as bad:
        raise error(f"the checkpoint {path} is damaged: {bad}", "corrupt_data") from bad
    model, optimizer = (_read_tensors(path, manifest, part) for part in ("model", "optimizer"))
    fields = fields_of(optimizer)
    if any(GRADIENT in learnt for learnt in fields.values()):
        raise error(f"{path} was saved in the midst of a step, whose gradients no other form has: save at the end of one",
                    "unsupported")
    loop = json.loads(manifest["loop"]) if manifest.get("loop") else {}
    return Whole(model, fields, manifest["optimizer"]["kind"], _groups(manifest, loop, fields, path),
                 {key: value for key, value in manifest.items() if key not in _OWN})


def write(whole: Whole, target: pathlib.Path) -> None:
    """A new folder, which appears when all of it is on the disk.

    Raises:
        bimetal.Error: ``invalid_argument`` if there is something already.
    """
    with new_folder(target) as folder:
        _save(whole.model, folder / _MODEL)
        learnt = {f"{name}.{field}": value for name, fields in whole.optimizer.items() for field, value in fields.items()}
        _save(learnt, folder / _OPTIMIZER)
        files = {name: {"size": (folder / name).stat().st_size, "sha256": saved.sum_of(folder / name)}
                 for name in (_MODEL, _OPTIMIZER)}
        plain = [{key: value for key, value in group.items() if key != "params"} for group in whole.groups]
        manifest = {"format_version": 1, "sequence": 1, **whole.training,
                    "optimizer": {"kind": whole.kind, "groups": plain}, "files": files}
        body = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
        manifest["sha256"] = hashlib.sha256(body.encode()).hexdigest()
        (folder / _STATE).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def new_training(whole: Whole, seed: int) -> dict[str, Any]:
    """The state.json of a training that has come from elsewhere: it is at the beginning of its data."""
    generator = base64.b64encode(bytes(torch.get_rng_state().tolist())).decode()
    state = {"step": whole.step, "epoch": 0, "offset": 0, "seed": seed, "global_batch": 0, "shares": [], "term": 0,
             "torch_rng": generator}
    loop = {"kind": whole.kind, "groups": whole.groups, "plain": {}, "loop": None}
    return {"state": state, "loop": json.dumps(loop)} if whole.groups else {"state": state}


def kind_of(fields: dict[str, dict[str, torch.Tensor]]) -> str:
    """Which optimizer learns such things: "none" if it is not known."""
    present = {field for learnt in fields.values() for field in learnt} - {"step", "max_exp_avg_sq"}
    return _KINDS.get(frozenset(present), "none")


def new_folder(target: pathlib.Path) -> Any:
    """``folders.whole`` where nothing is yet. bimetal.Error ``invalid_argument`` elsewhere."""
    target = target.absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise error(f"{target} is there already: name a new folder", "invalid_argument")
    return folders.whole(target)


def _groups(manifest: dict[str, Any], loop: dict[str, Any], fields: dict[str, Any],
            path: pathlib.Path) -> list[dict[str, Any]]:
    """A loop in Python names the parameters of its groups; a job file has one group."""
    if loop.get("groups"):
        return list(loop["groups"])
    groups = manifest["optimizer"]["groups"]
    if len(groups) > 1:
        raise error(f"{path} has {len(groups)} groups of parameters and does not say which are in which", "unsupported")
    return [{**groups[0], "params": list(fields)}] if groups and fields else []


def _read_tensors(path: pathlib.Path, manifest: dict[str, Any], part: str) -> dict[str, torch.Tensor]:
    if "slices" not in manifest:
        return _load(path / f"{part}.safetensors")
    files: dict[str, dict[str, torch.Tensor]] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, entry in manifest["slices"][part].items():
        for piece in entry["slices"]:
            if piece["file"] not in files:
                files[piece["file"]] = _load(path / piece["file"])
            values = files[piece["file"]][piece.get("tensor", name)]
            if name not in tensors:
                tensors[name] = torch.empty(entry["shape"], dtype=values.dtype)
            _place(tensors[name], piece["offset"], piece["size"]).copy_(values)
    return tensors


def _place(whole: torch.Tensor, offset: list[int], size: list[int]) -> torch.Tensor:
    """The place of a slice: a box, or a range of the elements in row-major order."""
    if len(offset) == whole.dim():
        for dimension, (begin, length) in enumerate(zip(offset, size, strict=True)):
            whole = whole.narrow(dimension, begin, length)
        return whole
    return whole.view(-1).narrow(0, offset[0], size[0])


def _load(path: pathlib.Path) -> dict[str, torch.Tensor]:
    return dict(_safetensors().load_file(path))


def _save(tensors: dict[str, torch.Tensor], path: pathlib.Path) -> None:
    _safetensors().save_file(dict(_apart(tensors)), path)


def _apart(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tied tensors once more: the format knows none that share memory."""
    seen: set[int] = set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        where = value.untyped_storage().data_ptr()
        yield name, value.clone() if where in seen and value.numel() else value
        seen.add(where)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as missing:
        raise error("checkpoints of other programs are read and written with the package safetensors: pip install "
                    "safetensors", "unsupported") from missing
    return safetensors.torch
