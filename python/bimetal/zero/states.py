"""The state of an optimizer of pieces, put together in torch's form, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from bimetal._errors import error
from bimetal._together import clip_over_ranks, share_text
from bimetal.zero.optimizer import Piece, part_of_state

Gather = Callable[[list[torch.Tensor | None], int | None], dict[str, torch.Tensor]]
States = dict[str, dict[str, Any]]  # by the parameter's name


class WholeStates:
    """A module and its optimizer of which each rank keeps a part, and their states as torch has them for the whole.

    Attributes: group; pieces: of parameters, that this rank keeps.
    """

    group: dist.ProcessGroup | None
    pieces: list[Any]
    _names: dict[int, str]  # of the parameters in pieces, by the id of what the module's own state has of them
    _shapes: dict[str, Any] | None = None  # of the whole module's state; None: those of its own
    _optimizer: torch.optim.Optimizer | None = None
    _groups: list[list[str]]  # names of the parameters that each of the optimizer's groups had
    _without = ""  # the message where there is no optimizer

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """As ``torch.nn.utils.clip_grad_norm_``, of the gradients of all ranks. Collective.

        Returns: the norm before clipping, a float64 scalar and the same on every rank.
        """
        self.finish()
        here = [piece for piece in self.pieces if piece.tensor.grad is not None]
        counted = [piece.tensor.grad for piece in here if self._counts(piece)]
        return clip_over_ranks([piece.tensor.grad for piece in here], counted, max_norm, self.group)

    def state_dict(self, rank: int | None = 0) -> dict[str, Any]:
        """The whole module's, on the CPU, with buffers of this rank's. Collective.

        Args:
            rank: of the group, that gets it; the others' are empty. None: all.
        """
        values = self._gather_parts([piece.tensor for piece in self.pieces], rank)
        return {key: values[self._names[id(value)]] if id(value) in self._names else copy_of(value)
                for key, value in self.kept_state().items()} if self._gets(rank) else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on with it. Collective.

        Args:
            state_dict: whole, on every rank; each reads its parts of it, so that it may be mapped from a file.

        Raises:
            bimetal.Error: ``invalid_argument`` where names or shapes are not the module's; nothing is changed then.
        """
        kept, keys = self.kept_state(), {}
        require_same(self._shapes or kept, state_dict)
        with torch.no_grad():
            for key, value in kept.items():
                if id(value) in self._names:
                    keys.setdefault(self._names[id(value)], key)
                elif isinstance(value, torch.Tensor):
                    value.copy_(state_dict[key])
            for piece in (piece for piece in self.pieces if piece.name in keys):
                piece.tensor.copy_(piece.part_of(state_dict[keys[piece.name]]))
        self.parameters_changed()

    def optimizer_state_dict(self, rank: int | None = 0) -> dict[str, Any]:
        """The optimizer's as torch has it for whole parameters, whose numbers are those that it had before they were cut.
        Collective; ``rank`` as in ``state_dict``."""
        optimizer, pieces = self._require_optimizer(), self._told()
        whole = gather_states(states_of(optimizer, pieces), pieces, self._gather_parts, rank, self.group)
        return as_torch_has_them(whole, self._groups, optimizer.param_groups) if self._gets(rank) else {}

    def load_optimizer_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with it, of any number of ranks or of one process; whole on every rank. (``state_dict["state"]`` is
        asked for one parameter at a time, so that it may be read from a file meanwhile.)"""
        load_whole(self._require_optimizer(), self.pieces, self._groups, state_dict)

    def kept_state(self) -> dict[str, Any]:
        """The module's state_dict with its own tensors, of which parameters may be without their values."""
        raise NotImplementedError

    def finish(self) -> None:
        """Before gradients are looked at."""

    def parameters_changed(self) -> None:
        """The pieces have got other values."""

    def _told(self) -> list[Any]:
        """The pieces whose states this rank tells the others."""
        return self.pieces

    def _counts(self, piece: Any) -> bool:
        """Whether no other rank counts its gradient."""
        return True

    def _gets(self, rank: int | None) -> bool:
        return rank is None or dist.get_rank(self.group) == rank

    def _gather_parts(self, parts: list[torch.Tensor | None], root: int | None) -> dict[str, torch.Tensor]:
        """Whole tensors, by parameter, of what the ranks have of them, one of each of ``_told()`` or None."""
        return self._gather({piece.name: part.view(piece.tensor.shape)
                             for piece, part in zip(self._told(), parts, strict=True) if part is not None}, root)

    def _gather(self, own: dict[str, torch.Tensor], root: int | None) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def _require_optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            raise error(self._without, "invalid_argument")
        return self._optimizer


def states_of(optimizer: torch.optim.Optimizer, pieces: list[Piece]) -> list[dict[str, Any]]:
    """The state of each piece; empty before its first step."""
    kept = optimizer.kept_states() if hasattr(optimizer, "kept_states") else optimizer.state
    return [kept.get(piece.tensor, {}) for piece in pieces]


def gather_states(states: list[dict[str, Any]], pieces: list[Piece], gather: Gather, root: int | None,
                  group: dist.ProcessGroup | None) -> States:
    """The states of whole parameters on rank `root` of the group, or with None on all; elsewhere none. Collective."""
    known = [_describe(piece, state) for piece, state in zip(pieces, states, strict=True)]
    fields: dict[str, dict[str, Any]] = {}  # by parameter: None for what is gathered, else the value
    for text in share_text(json.dumps([[piece.name, what] for piece, what in zip(pieces, known, strict=True)]), group):
        for name, what in json.loads(text):
            fields.setdefault(name, {}).update(what)
    cut = sorted({field for what in fields.values() for field, value in what.items() if value is None})
    here = root is None or dist.get_rank(group) == root
    whole: States = {name: {field: _value(value) for field, value in what.items() if value is not None}
                     for name, what in fields.items() if here}
    for field in cut:
        parts = [state[field].reshape(-1) if what.get(field, 0) is None else None
                 for state, what in zip(states, known, strict=True)]
        for name, tensor in gather(parts, root).items():
            if fields.get(name, {}).get(field, 0) is None:
                whole[name][field] = tensor
    return {name: state for name, state in whole.items() if state}


def put_states(optimizer: torch.optim.Optimizer, parts: dict[torch.Tensor, dict[str, Any]]) -> None:
    """The states of its parameters; what it has otherwise is gone."""
    if hasattr(optimizer, "put_states"):
        optimizer.put_states(parts)
        return
    optimizer.state.clear()
    optimizer.state.update(parts)


def load_whole(optimizer: torch.optim.Optimizer, pieces: list[Piece], groups: list[list[str]],
               state_dict: dict[str, Any]) -> None:
    """Goes on with an optimizer's state_dict of whole parameters. Args: groups: names of those that each group has."""
    state, numbers = state_dict["state"], numbers_in(state_dict["param_groups"], groups)
    parts = {}
    for piece in pieces:
        whole = state[numbers[piece.name]] if numbers.get(piece.name) in state else None
        if whole:
            parts[piece.tensor] = part_of_state(piece, whole)
    put_states(optimizer, parts)
    put_options(optimizer, state_dict["param_groups"])


def put_options(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    """The options of each group, which may have been through JSON, that has no tuples."""
    for group, options in zip(optimizer.param_groups, saved, strict=True):
        for key, value in options.items():
            if key != "params":
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value


def as_torch_has_them(states: States, groups: list[list[str]], options: list[dict[str, Any]]) -> dict[str, Any]:
    """An optimizer's state_dict: parameters are numbers, counted through the groups."""
    numbers = {name: number for number, name in enumerate(name for names in groups for name in names)}
    first, packed = 0, []
    for names, kept in zip(groups, options, strict=True):
        packed.append({**{key: value for key, value in kept.items() if key != "params"},
                       "params": list(range(first, first + len(names)))})
        first += len(names)
    return {"state": {numbers[name]: states[name] for name in sorted(states, key=numbers.__getitem__)
                      if name in numbers}, "param_groups": packed}


def numbers_in(saved: list[dict[str, Any]], groups: list[list[str]]) -> dict[str, int]:
    """The number of each parameter in an optimizer's state_dict with these param_groups. bimetal.Error
    ``invalid_argument`` if they are others."""
    sizes = [len(group["params"]) for group in saved]
    if sizes != [len(names) for names in groups]:
        raise error(f"the optimizer's state is of groups of {sizes} parameters, but this one has "
                    f"{[len(names) for names in groups]}", "invalid_argument")
    return {name: number for group, names in zip(saved, groups, strict=True)
            for number, name in zip(group["params"], names, strict=True)}


def copy_of(value: Any) -> Any:
    """A tensor on the CPU that nobody else has; anything else as it is."""
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def require_same(own: dict[str, Any], given: Mapping[str, Any]) -> None:
    """bimetal.Error ``invalid_argument`` where a module's state has other names or shapes than its own."""
    missing, others = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or others:
        raise error(f"the state is of another module: it lacks {missing or 'nothing'}, and {others or 'nothing'} is "
                    "not the module's", "invalid_argument")
    for key, value in own.items():
        if isinstance(value, torch.Tensor) and value.shape != given[key].shape:
            raise error(f"the state is of another module: {key} has shape {list(given[key].shape)}, not "
                        f"{list(value.shape)}", "invalid_argument")


def _describe(piece: Piece, state: dict[str, Any]) -> dict[str, Any]:
    """The parts of a piece's state that are cut (None), and the values of all else."""
    known: dict[str, Any] = {}
    for field, value in state.items():
        if isinstance(value, torch.Tensor):
            is_part = field != "step" and value.numel() == piece.tensor.numel()
            known[field] = None if is_part else [str(value.dtype).removeprefix("torch."), value.tolist()]
        elif value is not None:
            known[field] = ["", value]
    return known


def _value(described: list) -> Any:
    kind, value = described
    return torch.tensor(value, dtype=getattr(torch, kind)) if kind else value
