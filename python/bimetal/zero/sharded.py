"""A module in shards, as a training loop has it."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal.balance import BalancedBatchSampler
from bimetal.zero import checkpoint, ownership
from bimetal.zero.optimizer import Piece, require_by_element, take_pieces
from bimetal.zero.ownership import ADVICE
from bimetal.zero.passes import Passes, Unit
from bimetal.zero.slices import Kept
from bimetal.zero.states import WholeStates


class Sharded(WholeStates):
    """The object that ``shard`` returns. The loop goes on with its module and its optimizer; the methods here are for
    other requests to a model or an optimizer. Calls marked collective are made by all ranks of the group.

    Attributes: module, level, group; shard_bytes: bytes of parameters that each rank keeps; advice: what to call in whose
    place, for messages.
    """

    _without = "shard() was given no optimizer: give it one, or sharded.attach(optimizer) later"

    def __init__(self, module: nn.Module, units: list[Unit], core: _C.HookedModel, level: int,
                 group: dist.ProcessGroup | None, factor: Callable[[], float] | None,
                 sampler: BalancedBatchSampler | None, tokens: bool):
        self.module, self.level, self.group = module, level, group
        self.shard_bytes: list[int] = core.shard_bytes
        self.pieces = [Piece(*parts) for parts in core.pieces]
        self._core, self._sampler, self._tokens = core, sampler, tokens
        self._groups = []
        self._whole = level < 3
        self.advice = ADVICE
        self._own_factor = factor
        self._token_wait = 0.0
        self._all_tokens: int | None = None  # of the sampler's batch under way
        self._trained = {name: parameter for unit in units for name, parameter in unit.parameters}
        self._names = {id(parameter): name for name, parameter in self._trained.items()}
        self._device = next(iter(self._trained.values())).device
        self._passes = Passes(core, module, units, level, self._factor, self._begun, self._before_sums, self._after_sums)
        if sampler is not None:
            sampler.leave_out(lambda: core.wait_seconds + self._token_wait)
        self._memory = ownership.take_over(self, self._trained.values())
        if level == 3:
            module.register_state_dict_pre_hook(self._require_whole)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """For an optimizer that is made after ``shard``, of the module's parameters: its parameters become this rank's pieces,
        and its steps those of all ranks, as those of one that ``shard`` is given. Once.

        Raises:
            bimetal.Error: ``invalid_argument`` where there is one already, and for parameters of another model;
                ``unsupported`` for an optimizer that ``shard`` would not take.
        """
        if self._optimizer is not None:
            raise error("attach(): the module in shards has an optimizer already, and takes one", "invalid_argument")
        require_by_element(optimizer)
        self.watch(optimizer, take_pieces(optimizer, self.module, self.pieces))

    def watch(self, optimizer: torch.optim.Optimizer, groups: list[list[str]]) -> None:
        """Lets the optimizer's steps be those of all ranks. ``shard`` and ``attach`` call it.

        Args:
            groups: names of the parameters that each of its groups had.
        """
        self._optimizer, self._groups = optimizer, groups
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(lambda *_: self._core.after_update())
        own = optimizer.zero_grad

        def zero_grad(set_to_none: bool = True) -> None:
            self.forget_gradients()
            own(set_to_none=set_to_none)

        optimizer.zero_grad = zero_grad

    def finish(self) -> None:
        """Sums the step's gradients over the ranks: each piece's ``grad`` is then its own. The optimizer's ``step`` and
        ``clip_grad_norm_`` do so by themselves. Collective."""
        self._check_no_gradients()
        self._passes.finish()

    def forget_gradients(self) -> None:
        """Drops what this step has, as the optimizer's ``zero_grad`` does. Collective."""
        for parameter in self._trained.values():  # also made by hand
            parameter.grad = None
        if self._core.has_gradients:
            self.finish()
        self._passes.finished = False
        for piece in self.pieces:
            piece.tensor.grad = None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For micro-batches, all but the last: their backward leaves the batch of the sampler under way. At level 1
        their gradients wait for the last one's, so that a step sends them once."""
        before, self._passes.reduce = self._passes.reduce, False
        try:
            yield
        finally:
            self._passes.reduce = before

    @contextlib.contextmanager
    def whole(self, modifier_rank: int | None = None, names: Sequence[str] = ()) -> Iterator[None]:
        """All parameters, or those named, are there: for looking at them or, with ``modifier_rank``, for changing them;
        what that rank has made of them is everybody's afterwards. At level 3 there must be room for them.
        Collective."""
        self._core.hold_whole(list(names))
        self._whole = self.level < 3 or not names or set(names) == self._trained.keys()
        try:
            yield
        finally:
            self._whole = self.level < 3
            self._core.let_go_of_whole(modifier_rank)

    @staticmethod
    def of(parameter: torch.Tensor) -> Sharded | None:
        """The owner of a parameter; None: it is in no shards."""
        return ownership.owner_of(parameter)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name of one of the parameters that are in shards."""
        return self._names.get(id(parameter))

    @property
    def keeps_gradients(self) -> bool:
        """Whether the step under way has any, which the parameters then have not, or not all of them."""
        return not self._passes.in_backward and (self._core.has_gradients or self._passes.finished)

    def end_passes(self) -> None:
        """At level 3, after an evaluation in which ranks have computed unequal numbers of batches. Collective."""
        self._core.end_passes()

    def kept_state(self) -> dict[str, Any]:
        before, self._whole = self._whole, True
        try:
            return self.module.state_dict(keep_vars=True)
        finally:
            self._whole = before

    def save_checkpoint(self, path: str | os.PathLike, loop: Any = None) -> None:
        """Writes the module and the optimizer, each rank what it keeps, as the folder ``path`` of rank 0, which appears
        whole, also in place of an older one; anything else that lies there is an error. Between steps. Collective.

        Args:
            loop: what ``load_checkpoint`` is to return (a sampler's state_dict, say); rank 0's, through JSON.

        Raises:
            bimetal.Error: on every rank, where one cannot write its part.
        """
        place = checkpoint.Place.of(self.group)
        checkpoint.save(self.kept(), place, path, loop, {})
        checkpoint.remove_leftovers(place, *os.path.split(os.path.abspath(path)))

    def load_checkpoint(self, path: str | os.PathLike) -> Any:
        """Goes on with one, of any level, shards and number of ranks; each rank reads what it keeps. Returns what
        ``save_checkpoint`` was given. Collective.

        Raises:
            bimetal.Error: ``invalid_argument`` where it does not fit, ``corrupt_data`` where it is damaged; nothing is
                changed then.
        """
        loop = checkpoint.load(self.kept(), checkpoint.Place.of(self.group), os.path.abspath(path), checkpoint.Wanted())
        self.parameters_changed()
        return loop

    def kept(self, gradients: list[torch.Tensor | None] | None = None) -> Kept:
        """The tensors that this rank gives to a checkpoint, and takes from one. Args: gradients: of each piece, of a
        step under way."""
        return Kept(self.kept_state(), self._names, self.pieces, lambda _: True, dist.get_rank(self.group) == 0,
                    self._optimizer, self._groups, gradients or [None] * len(self.pieces))

    def parameters_changed(self) -> None:
        """The pieces have got other values: those who have them whole get these, too. Collective."""
        self._core.after_update()

    @property
    def wait_seconds(self) -> float:
        """That this rank has spent waiting for others and the network so far."""
        return self._core.wait_seconds

    def __repr__(self) -> str:
        here = sum(piece.tensor.numel() for piece in self.pieces)
        whole = sum(parameter.numel() for parameter in self._trained.values())
        return (f"{self.advice.level} {self.level}, shard {dist.get_rank(self.group)} of {dist.get_world_size(self.group)}: {here} of {whole} "
                "trained parameters")

    def _gather_parts(self, parts: list[torch.Tensor | None], root: int | None) -> dict[str, torch.Tensor]:
        return dict(self._core.gather(parts, root))

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:  # the first is the optimizer
            raise error("the optimizer's step takes no closure here: its gradients have to be summed over the ranks "
                        "before", "unsupported")
        ownership.check_optimizer(self, optimizer)
        ownership.check_module(self, self._memory)
        self.finish()
        self._passes.finished = False

    def _require_whole(self, *_: Any) -> None:
        if not self._whole:
            raise error(f"at {self.advice.level} 3 the module's parameters are not there: {self.advice.state}", "invalid_argument")

    def _factor(self) -> float:
        if self._own_factor is not None:
            return self._own_factor()
        if self._sampler is None:
            return 1 / dist.get_world_size(self.group)
        _under_way.setdefault(self._sampler, weakref.WeakSet()).add(self)
        if not self._tokens:
            return self._sampler.weight
        if self._all_tokens is None:
            began = time.perf_counter()
            self._sampler.send_tokens(torch.device("cpu"))
            self._all_tokens = int(self._sampler.all_tokens.wait()[0])
            self._token_wait += time.perf_counter() - began
        return self._sampler.tokens / max(1, self._all_tokens)

    def _begun(self) -> None:
        """Something that adds to this step."""
        if self._passes.finished and any(piece.tensor.grad is not None for piece in self.pieces):
            raise error("a backward comes after the step's gradients have been summed (by clip_grad_norm_ or finish), and before "
                        "optimizer.step(): clip once, when all of a step's gradients are there", "invalid_argument")
        self._check_no_gradients()

    def _check_no_gradients(self) -> None:
        """Those of backward are gone from the parameters when it ends, unless they wait for others."""
        if not self._passes.held_back:
            ownership.check_no_gradients(self._trained)

    def _before_sums(self) -> None:
        if self._sampler is None or not self._is_last_of_batch():
            return
        self._sampler.stop_clock(self._device)
        self._sampler.exchange_figures()

    def _after_sums(self) -> None:
        self._all_tokens = None if self._passes.reduce else self._all_tokens
        if self._sampler is not None and self._passes.reduce:
            self._sampler.restart_clock()

    def _is_last_of_batch(self) -> bool:
        """Several modules in a row may have a sampler in common: one backward through all of them ends its batch once."""
        others = _under_way[self._sampler]
        others.discard(self)
        return self._passes.reduce and not others


_under_way: weakref.WeakKeyDictionary[BalancedBatchSampler, weakref.WeakSet[Sharded]] = weakref.WeakKeyDictionary()
