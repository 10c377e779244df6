"""Checkpoints of which each rank writes and reads its part: docs/checkpoints.md."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from bimetal import _C
from bimetal._core import core
from bimetal._errors import error
from bimetal._together import share_text
from bimetal.library import files
from bimetal.process_group import core_group
from bimetal.zero import slices
from bimetal.zero.slices import Kept
from bimetal.zero.states import put_options

_ALONE = datetime.timedelta(minutes=10)


@dataclasses.dataclass
class Place:
    """The ranks that have a checkpoint in common.

    Attributes:
        group: for the core.
        share: gives every rank's text. Collective.
        first: whether this rank's word counts where one does.
    """

    group: _C.ProcessGroup
    share: Callable[[str], list[str]]
    first: bool

    @staticmethod
    def of(group: dist.ProcessGroup | None) -> Place:
        """The place in a process group of this library's."""
        return Place(core_group(group), functools.partial(share_text, group=group), dist.get_rank(group) == 0)

    @staticmethod
    def alone() -> Place:
        """The place of this process alone, whatever groups there are."""
        options = dist.distributed_c10d._DistributedBackendOptions()
        options.store, options.timeout = dist.HashStore(), _ALONE
        options.group_rank, options.group_size, options.global_ranks_in_group = 0, 1, [0]
        options.group_id = "alone with a checkpoint"
        return Place(core.make_backend(options).for_torch_library(), lambda text: [text], True)

    def on_first(self, action: Callable[[], str | None], what: str) -> str:
        """The result of `action` on the first rank. If it raises, all ranks do. Collective."""
        failure, result = None, ""
        if self.first:
            try:
                result = action() or ""
            except Exception as bad:  # the others must learn of whatever it is
                failure = bad
        text = self.share(json.dumps([failure is None, result if failure is None else str(failure)]))[0]
        if failure is not None:
            raise failure
        fine, told = json.loads(text)
        if not fine:
            raise error(f"{what}: rank 0: {told}", "aborted", 0)
        return told


def save(kept: Kept, place: Place, path: str | os.PathLike, loop: Any, at: dict[str, int]) -> None:
    """Each rank writes its part, all at the same time; the checkpoint is at its place when all are on the disk, and what
    was there of that name stays whole till then. Collective.

    Args:
        path: rank 0's. Ranks that do not see its folder send their parts there.
        loop: what else is to be found again, of rank 0; it must go through JSON.
        at: of the training, as far as known: step, epoch, offset, global_batch.

    Raises:
        bimetal.Error: on every rank, where one cannot write its part.
    """
    path = os.path.abspath(path)
    what = f"cannot save the checkpoint {path}"
    plain = _plain_of_all(kept, place, what)
    text = place.on_first(lambda: _loop_text(kept, plain, loop), what)
    model, learnt = slices.model_slices(kept), slices.optimizer_slices(kept)
    _C.save_slices(place.group, path, model, learnt, _kind(kept), json.dumps(_options(kept)), at, text)


def remove_leftovers(place: Place, folder: str | os.PathLike, name: str | None = None) -> None:
    """Removes leftovers of killed saves of that name, or of all. Only once there is another whole copy: if a file
    system cannot swap two names, a leftover may be the only one."""
    if place.first:
        files.remove_leftovers(folder, name)


@dataclasses.dataclass
class Wanted:
    """The parts of a checkpoint to take. ``strict``: the module must be the one that was saved."""

    strict: bool = True
    optimizer: bool = True
    gradients: bool = False


def load(kept: Kept, place: Place, path: str, wanted: Wanted, check: Callable[[Any], None] = lambda _: None) -> Any:
    """Each rank reads its part, whatever kept it before; ``kept.gradients`` become the checkpoint's. Nothing is changed
    where the checkpoint does not fit. Collective.

    Args:
        path: rank 0's, which reads for those who do not see it.
        check: is given what this returns before anything is changed, to raise on all ranks or on none.

    Returns: ``save``'s loop; None in others' checkpoints.

    Raises:
        bimetal.Error: on every rank, where one cannot read its part.
    """
    saved = _C.SavedSlices(place.group, path)
    said = json.loads(saved.loop) if saved.loop else {"loop": None, "groups": [], "plain": {}}
    found = slices.require_same_model(kept, saved.model, wanted.strict)
    groups = said["groups"] if wanted.optimizer and kept.optimizer is not None else []
    _require_same_groups(kept, groups)
    if groups:
        _require_same_kind(kept, said.get("kind", "none"), path)
    check(said["loop"])
    fields = slices.fields_of(saved.optimizer)

    def read() -> None:
        slices.read_model(kept, found, saved.read)
        if wanted.optimizer and kept.optimizer is not None:
            slices.read_states(kept, fields, slices.fields_of(said["plain"]), saved.read)
        if wanted.gradients:
            kept.gradients = slices.read_gradients(kept.pieces, fields, saved.read)

    _take_on_all(place, saved, read, path)
    if groups:
        put_options(kept.optimizer, groups)
    return said["loop"]


def _take_on_all(place: Place, saved: _C.SavedSlices, read: Callable[[], None], path: str) -> None:
    """If the read of one rank raises, all ranks do. Collective."""
    failure: Exception | None = None

    def take() -> None:
        nonlocal failure
        try:
            read()
        except Exception as bad:  # the others, whom rank 0 still reads for, must learn of whatever it is
            failure = bad

    saved.each_takes(take)
    told = place.share(json.dumps(None if failure is None else str(failure)))
    if failure is not None:
        raise failure
    for rank, text in enumerate(map(json.loads, told)):
        if text is not None:
            raise error(f"rank {rank} could not read its part of {path}: {text}", "aborted", rank)


def _plain_of_all(kept: Kept, place: Place, what: str) -> dict[str, Any]:
    """``slices.plain_values`` of all ranks. Collective."""
    try:
        own = json.dumps(["", slices.plain_values(kept)])
    except (TypeError, ValueError) as bad:  # the others must learn of it
        own = json.dumps([f"what the optimizer has learnt cannot be written as JSON: {bad}", {}])
    plain: dict[str, Any] = {}
    for rank, text in enumerate(place.share(own)):
        failure, values = json.loads(text)
        if failure:
            raise error(f"{what}: rank {rank}: {failure}", "invalid_argument", rank)
        plain = {**values, **plain}
    return plain


def _loop_text(kept: Kept, plain: dict[str, Any], loop: Any) -> str:
    groups = [{**options, "params": names} for options, names in zip(_options(kept), kept.groups, strict=True)]
    try:
        return json.dumps({"kind": _kind(kept), "groups": groups, "plain": plain, "loop": loop})
    except TypeError as bad:
        raise error(f"what the loop wants to find again, or an option of the optimizer, cannot be written as JSON: {bad}",
                    "invalid_argument") from bad


def _options(kept: Kept) -> list[dict[str, Any]]:
    if kept.optimizer is None:
        return []
    return [{key: value for key, value in group.items() if key != "params"} for group in kept.optimizer.param_groups]


def _kind(kept: Kept) -> str:
    if kept.optimizer is None:
        return "none"
    return getattr(kept.optimizer, "kind", type(kept.optimizer).__name__.lower())


def _require_same_groups(kept: Kept, saved: list[dict[str, Any]]) -> None:
    sizes, own = [len(group["params"]) for group in saved], [len(names) for names in kept.groups]
    if saved and sizes != own:
        raise error(f"the optimizer's state is of groups of {sizes} parameters, but this one has {own}",
                    "invalid_argument")


def _require_same_kind(kept: Kept, saved: str, path: str) -> None:
    """Adam and AdamW have the same states. "none": it is not known."""
    own = _kind(kept)
    if saved != "none" and saved != own and {saved, own} != {"adam", "adamw"}:
        raise error(f"{path} was saved with the optimizer '{saved}', this loop uses '{own}'", "invalid_argument")
