"""A rank's part of a training as slices of whole tensors, which checkpoints are made of, and the way back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from bimetal._errors import error
from bimetal.zero.optimizer import Piece
from bimetal.zero.states import put_states, states_of

# The tensor's name and shape, the slice's offset and size, its values. One offset: a range of its elements.
Slice = tuple[str, list[int], list[int], list[int], torch.Tensor]
Read = Callable[[str, str, list[int], list[int]], torch.Tensor]  # "model" or "optimizer", name, offset, size
GRADIENT = "gradient"  # beside the optimizer's own fields: of a step that is not complete


@dataclasses.dataclass
class Kept:
    """The part that this rank keeps of a training.

    Attributes:
        state: the module's state_dict with its own tensors, of which those in pieces may be without values.
        names: the names of those that are in pieces, by their id.
        pieces: of them, as far as they are here.
        gives: whether this rank gives a piece to a checkpoint: if several keep all of a tensor, one does.
        first: whether it gives the tensors that are in no pieces.
        optimizer: None: none yet. It has the pieces' tensors.
        groups: the names of the parameters in each of its groups.
        gradients: of each piece, in a step that is not complete; None: there is none.
    """

    state: dict[str, Any]
    names: dict[int, str]
    pieces: list[Piece]
    gives: Callable[[Piece], bool]
    first: bool
    optimizer: torch.optim.Optimizer | None
    groups: list[list[str]]
    gradients: list[torch.Tensor | None]


def model_slices(kept: Kept) -> list[Slice]:
    slices = [_cut(piece.name, piece, piece.tensor) for piece in kept.pieces if kept.gives(piece)]
    return slices + [_whole(name, value) for name, value in _rest(kept).items() if kept.first]


def optimizer_slices(kept: Kept) -> list[Slice]:
    """Numbers for all of a parameter come from every rank that has a piece of it, and count once."""
    slices: dict[tuple[str, int], Slice] = {}
    for piece, state, gradient in zip(kept.pieces, _states(kept), kept.gradients, strict=True):
        if not kept.gives(piece):
            continue
        for field, value in {**state, GRADIENT: gradient}.items():
            name = f"{piece.name}.{field}"
            if not isinstance(value, torch.Tensor):
                continue
            if field != "step" and value.shape == piece.tensor.shape:
                slices[name, piece.offset] = _cut(name, piece, value)
            else:
                slices[name, 0] = _whole(name, value.long() if field == "step" else value)
    return list(slices.values())


def plain_values(kept: Kept) -> dict[str, Any]:
    """The values in states beside tensors, for JSON."""
    return {f"{piece.name}.{field}": value for piece, state in zip(kept.pieces, _states(kept), strict=True)
            for field, value in state.items() if value is not None and not isinstance(value, torch.Tensor)}


def require_same_model(kept: Kept, stored: Mapping[str, list[int]], strict: bool) -> dict[int, str]:
    """The checkpoint's name for each of the module's tensors, by their id. bimetal.Error ``invalid_argument`` if it
    lacks some or has others (unless not ``strict``), or if shapes differ."""
    found: dict[int, str] = {}
    for name, value in kept.state.items():
        if name in stored:
            found.setdefault(id(value), name)
    missing = sorted(name for name, value in kept.state.items() if id(value) not in found)
    others = sorted(set(stored) - set(kept.state))
    if strict and (missing or others):
        raise error(f"the checkpoint is of another module: it lacks {missing or 'nothing'}, and {others or 'nothing'} is "
                    "not the module's", "invalid_argument")
    for name, value in kept.state.items():
        if id(value) in found and list(value.shape) != stored[found[id(value)]]:
            raise error(f"the checkpoint is of another module: {name} has shape {stored[found[id(value)]]}, not "
                        f"{list(value.shape)}", "invalid_argument")
    return found


def read_model(kept: Kept, found: dict[int, str], read: Read) -> None:
    """Args: found: as ``require_same_model`` has told."""
    stored = {kept.names[number]: name for number, name in found.items() if number in kept.names}
    with torch.no_grad():
        for piece in kept.pieces:
            if piece.name in stored:
                piece.tensor.copy_(_read_part(read, "model", stored[piece.name], piece))
        for value in _rest(kept).values():
            if id(value) in found:
                value.copy_(read("model", found[id(value)], [0] * value.dim(), list(value.shape)))


def read_states(kept: Kept, fields: Mapping[str, dict[str, list[int]]], plain: Mapping[str, Any],
                read: Read) -> None:
    """The optimizer goes on with the pieces' parts, and with nothing else.

    Args:
        fields: the checkpoint's of each parameter, with their shapes.
        plain: what ``plain_values`` has given on any rank, by parameter and field.
    """
    assert kept.optimizer is not None
    kept.optimizer.state.clear()  # or there would be twice as many for a while
    states: dict[torch.Tensor, dict[str, Any]] = {}
    for piece in kept.pieces:
        state = dict(plain.get(piece.name, {}))
        for field, shape in fields.get(piece.name, {}).items():
            if field != GRADIENT:
                state[field] = _read_field(read, field, shape, piece)
        if state:
            states[piece.tensor] = state
    for group in kept.optimizer.param_groups:
        if group.get("capturable") or group.get("fused"):  # these count on the device
            for tensor in group["params"]:
                if "step" in states.get(tensor, {}):
                    states[tensor]["step"] = states[tensor]["step"].to(tensor.device)
    put_states(kept.optimizer, states)


def read_gradients(pieces: list[Piece], fields: Mapping[str, dict[str, list[int]]],
                   read: Read) -> list[torch.Tensor | None]:
    """The gradient of each piece; None: the step has none."""
    return [_read_field(read, GRADIENT, fields[piece.name][GRADIENT], piece)
            if GRADIENT in fields.get(piece.name, {}) else None for piece in pieces]


def fields_of(stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By parameter, of what is stored as "parameter.field"."""
    fields: dict[str, dict[str, Any]] = {}
    for key, value in stored.items():
        name, _, field = key.rpartition(".")
        fields.setdefault(name, {})[field] = value
    return fields


def _states(kept: Kept) -> Iterator[dict[str, Any]]:
    if kept.optimizer is None:
        return iter([{}] * len(kept.pieces))
    return iter(states_of(kept.optimizer, kept.pieces))


def _rest(kept: Kept) -> dict[str, torch.Tensor]:
    """The tensors that are in no pieces: buffers, and parameters that are not trained or have no elements; tied ones
    once."""
    rest: dict[int, tuple[str, torch.Tensor]] = {}
    for name, value in kept.state.items():
        if not isinstance(value, torch.Tensor):
            raise error(f"the module's state has '{name}', which is no tensor: checkpoints hold tensors alone",
                        "unsupported")
        if id(value) not in kept.names or value.numel() == 0:
            rest.setdefault(id(value), (name, value))
    return dict(rest.values())


def _cut(name: str, piece: Piece, values: torch.Tensor) -> Slice:
    if piece.tensor.shape == piece.shape:
        return _whole(name, values)
    return name, list(piece.shape), [piece.offset], [piece.tensor.numel()], values.detach()


def _whole(name: str, values: torch.Tensor) -> Slice:
    shape = list(values.shape)
    return name, shape, [0] * len(shape), shape, values.detach()


def _read_part(read: Read, part: str, name: str, piece: Piece) -> torch.Tensor:
    values = read(part, name, [piece.offset], [piece.tensor.numel()])
    kind = piece.tensor.dtype if values.is_floating_point() else values.dtype
    return values.view(piece.tensor.shape).to(piece.tensor.device, kind)


def _read_field(read: Read, field: str, shape: list[int], piece: Piece) -> torch.Tensor:
    name = f"{piece.name}.{field}"
    if field != "step" and shape == list(piece.shape):
        return _read_part(read, "optimizer", name, piece)
    value = read("optimizer", name, [0] * len(shape), shape)
    if field == "step":  # as torch's optimizers keep it
        double = torch.get_default_dtype() == torch.float64
        return value.to(torch.float64 if double else torch.float32)
    return value
