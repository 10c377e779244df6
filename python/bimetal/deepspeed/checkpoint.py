"""An engine's state on disk: a checkpoint in slices (docs/checkpoints.md), and which is the latest."""

from __future__ import annotations

import pathlib
from typing import Any

import torch
import torch.distributed as dist

from bimetal._errors import error
from bimetal._together import share_text
from bimetal.library import files
from bimetal.process_group import BACKEND
from bimetal.zero import checkpoint
from bimetal.zero.checkpoint import Place, Wanted
from bimetal.zero.optimizer import Piece
from bimetal.zero.slices import Kept

Engine = Any  # bimetal.deepspeed's, which calls the functions here
_STATE, _LATEST = "state.json", "latest"
_COUNTS = ("global_steps", "micro_steps", "skipped_steps")


def save(engine: Engine, folder: str, tag: str, client_state: dict[str, Any]) -> bool:
    """Collective. Raises bimetal.Error on every rank where one cannot write its part."""
    root, together = pathlib.Path(folder), _together(engine)
    kept = _kept(engine, together)
    if together is None:  # torch's groups, at stage 0: rank 0 has everything
        ranks = Place(None, share_text, dist.get_rank() == 0)
        alone = Place.alone() if ranks.first else None
        ranks.on_first(lambda: _write(engine, kept, alone, root, tag, client_state), f"cannot save {root / tag}")
    else:
        _write(engine, kept, together, root, tag, client_state)
    return True


def load(engine: Engine, folder: str, tag: str | None, strict: bool,
         parts: dict[str, bool]) -> tuple[str | None, dict[str, Any] | None]:
    together = _together(engine)
    place = together or Place.alone()
    path = place.on_first(lambda: _find(pathlib.Path(folder), tag), "no checkpoint")
    if not path:
        return None, None

    def check(state: Any) -> None:
        if parts["loop"] and not _is_engines(state):
            raise error(f"{path} was saved by no engine, which alone knows where a loop has come to; its weights load "
                        "with load_module_only=True", "invalid_argument")
        if _is_engines(state):
            _require_counts(state, path)

    kept = _kept(engine, together, reading=True)
    gradients = parts["loop"] and (engine.shards is not None or place.first)
    state = checkpoint.load(kept, place, path, Wanted(strict, parts["optimizer"], gradients), check)
    if engine.shards is not None:
        engine.shards.sharded.parameters_changed()
    if parts["loop"]:
        engine.take_gradients(kept.pieces, kept.gradients)
    if not _is_engines(state):
        return path, {}
    _go_on(engine, state, parts)
    return path, state["client_state"]


def _together(engine: Engine) -> Place | None:
    """None: the ranks are of another backend's group, which the core has no use for."""
    if not dist.is_initialized():
        return Place.alone()
    if engine.shards is None and dist.get_backend() != BACKEND:
        return None
    return Place.of(None)


def _find(root: pathlib.Path, tag: str | None) -> str:
    """The path of the checkpoint that is meant; "" if there is none."""
    if tag is None:
        if not (root / _LATEST).exists():
            return ""
        tag = (root / _LATEST).read_text().strip()
    path = (root / tag).absolute()
    if not (path / _STATE).exists():
        raise error(f"{path} is no checkpoint: it has no {_STATE}", "invalid_argument")
    return str(path)


def _is_engines(state: Any) -> bool:
    """Whether an engine has said where its loop was."""
    return isinstance(state, dict) and {"counts", "client_state"} <= state.keys()


def _require_counts(state: dict[str, Any], path: str) -> None:
    """They become the engine's: a file may set no other attribute of it."""
    counts = state["counts"]
    if not isinstance(counts, dict) or counts.keys() != set(_COUNTS) or not all(
            type(count) is int and 0 <= count < 1 << 53 for count in counts.values()):
        raise error(f"{path}/{_STATE} is damaged: its counts have to be {', '.join(_COUNTS)}, each a whole number",
                    "corrupt_data")


def _write(engine: Engine, kept: Kept, place: Place, root: pathlib.Path, tag: str,
           client_state: dict[str, Any]) -> None:
    loop = {"counts": {name: getattr(engine, name) for name in _COUNTS},
            "loss_scale": engine.config.core.loss_scale_state,
            "scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None,
            "sampler": engine.sampler.state_dict() if engine.sampler is not None else None,
            "client_state": client_state}
    at = {"step": engine.global_steps, "global_batch": engine.config.step_batch, **(loop["sampler"] or {})}
    checkpoint.save(kept, place, root / tag, loop, at)
    place.on_first(lambda: files.write_file_atomically(root / _LATEST, tag), f"cannot name {tag} the latest")
    checkpoint.remove_leftovers(place, root)


def _go_on(engine: Engine, state: dict[str, Any], parts: dict[str, bool]) -> None:
    if parts["scheduler"] and state["scheduler"] is not None and engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(state["scheduler"])
    if parts["loop"]:
        for name in _COUNTS:
            setattr(engine, name, state["counts"][name])
        engine.config.core.restore_loss_scale(tuple(state["loss_scale"]))
        if engine.sampler is not None and state["sampler"] is not None:
            engine.sampler.load_state_dict(state["sampler"])


def _kept(engine: Engine, together: Place | None, reading: bool = False) -> Kept:
    """Args: together: of ``_together``. reading: gradients are to come, so that none are summed."""
    if engine.shards is not None:
        gradients = [] if reading else engine.shards.carried()
        return engine.shards.sharded.kept(gradients or None)
    module = engine.module
    pieces = [Piece(name, list(parameter.shape), 0, parameter) for name, parameter in module.named_parameters()]
    names = {id(piece.tensor): piece.name for piece in pieces}
    groups = [[_name_of(names, parameter) for parameter in group["params"]]
              for group in engine.optimizer.param_groups]
    gradients = {} if reading else engine.summed_gradients()
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    givers = _givers(pieces, 1 if together is None else world)
    return Kept(module.state_dict(keep_vars=True), names, pieces, lambda piece: givers[piece.name] == rank, rank == 0,
                engine.optimizer, groups, [gradients.get(piece.name) for piece in pieces])


def _givers(pieces: list[Piece], ranks: int) -> dict[str, int]:
    """At stage 0, where all ranks have everything: who writes which parameter, about as many bytes each."""
    total = max(1, sum(piece.tensor.nbytes for piece in pieces))
    givers, before = {}, 0
    for piece in pieces:
        givers[piece.name] = before * ranks // total
        before += piece.tensor.nbytes
    return givers


def _name_of(names: dict[int, str], parameter: torch.Tensor) -> str:
    if id(parameter) in names:
        return names[id(parameter)]
    raise error(f"the optimizer has a parameter of shape {list(parameter.shape)} that the module has not: checkpoints know "
                "parameters by their names in the module", "unsupported")
