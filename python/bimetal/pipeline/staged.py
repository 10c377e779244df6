"""A module in stages, as a training loop has it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal._together import refuse_norms, refuse_states
from bimetal.pipeline.chain import Chain
from bimetal.pipeline.loss import Batch, mark_in_graph, require_of_outputs
from bimetal.pipeline.parts import Parts, Whole, gather
from bimetal.pipeline.passes import Passes
from bimetal.zero import states
from bimetal.zero.states import WholeStates

_STAGED = "bimetal.pipeline.stages(…)"  # in messages: the call that has returned it
_OURS = {"scale": "of the gradients", "targets": "what the loss is computed with"}


@dataclasses.dataclass
class Place:
    """This rank's place, and the units with which pieces begin."""

    stage: int
    stages: int
    replica: int
    replicas: int
    begins: list[int]

    def own(self) -> range:
        return range(self.stage, len(self.begins), self.stages)


class Learning:
    """Turns a loop's arguments into batches and their loss."""

    def __init__(self, loss_sum: Callable[[Any, Any], torch.Tensor], weight: Callable[[Any], int] | None):
        self.loss_sum, self._weight = loss_sum, weight

    def batch(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Batch:
        given = dict(kwargs)
        targets = given.pop("targets", None)
        if targets is None:
            targets = given.pop("labels", None)
        if targets is None:
            raise error("the batch has neither labels nor targets", "invalid_argument")
        if _takes_cache(module):
            given.setdefault("use_cache", False)  # keys and values of earlier calls, which training has no use for
        return Batch(args, given, targets)

    def weight(self, batch: Batch) -> int:
        return batch.samples if self._weight is None else int(self._weight(batch.targets))

    def loss_of_sample(self, module: nn.Module, sample: Mapping[str, Any] | Sequence[Any]) -> torch.Tensor:
        args, kwargs = ((), sample) if isinstance(sample, Mapping) else (tuple(sample[:-1]), {"targets": sample[-1]})
        batch = self.batch(module, args, dict(kwargs))
        return self.loss_sum(module(*batch.args, **batch.kwargs), batch.targets)


def _takes_cache(module: nn.Module) -> bool:
    """Whether its forward has ``use_cache``, or hands all that it is given on to one that does, as PEFT's models."""
    parameters = inspect.signature(module.forward).parameters
    hands_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return "use_cache" in parameters or (hands_on and hasattr(getattr(module, "config", None), "use_cache"))


class Staged(WholeStates):
    """The object that ``stages`` returns. All ranks make the same calls. Ranks of one replica call it with the same
    batch, and each uses the part that its stage needs (masks and positions are computed everywhere).

    Attributes: module, of which this rank's blocks are there; group; stage, stages, replica, replicas; begins: the unit
    that each piece begins with; units: the names of all.
    """

    _without = "stages() was given no optimizer"

    def __init__(self, chain: Chain, core: _C.LoopStage, place: Place, parts: Parts, pieces: list[Whole], learning: Learning,
                 schedule: str, micro_batches: int | None, micro_batch: int | None, group: dist.ProcessGroup | None):
        self.module, self.group = chain.module, group
        self.stage, self.stages, self.replica, self.replicas = place.stage, place.stages, place.replica, place.replicas
        self.begins, self.units = place.begins, [unit.name for unit in chain.units]
        self._core, self.pieces, self._learning = core, pieces, learning
        self._schedule, self._micro_batches, self._micro_batch = schedule, micro_batches, micro_batch
        self._groups = []
        self._device = next(chain.module.parameters()).device
        self._finer = 1  # times as many micro-batches, since a stage has run out of memory
        self._seen = False  # a batch has been computed: stages know what blocks return, and that it comes to numbers
        self._loss_is_of_outputs = self.stages == 1  # seen to, or no matter
        self._place = place
        self._frozen = [(name, tensor) for name, tensor in parts.buffers if isinstance(tensor, nn.Parameter)]
        self._cut(chain, parts)

    def _cut(self, chain: Chain, parts: Parts) -> None:
        names = {id(tensor): name for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]}
        whole = self.module.state_dict(keep_vars=True)
        self._keys = {key: names.get(id(value)) for key, value in whole.items()}
        self._shapes = {key: value.detach().to("meta") if isinstance(value, torch.Tensor) else value
                        for key, value in whole.items()}
        self._tensors = {name: tensor for name, tensor in parts.parameters + parts.buffers if name in self._keys.values()}
        here = {name for name, tensor in self._tensors.items() if self.replica == 0 and parts.first_here(tensor)}
        self._first = {name: tensor for name, tensor in self._tensors.items() if name in here}
        self._own = [chain.piece(self.begins, number) for number in self._place.own()]
        blocks = {index for piece in self._own for index in range(piece.begin, piece.end)}
        elsewhere = {id(part) for part in self.module.modules()
                     if not all(parts.here(tensor) for tensor in (*part.parameters(), *part.buffers()))}
        self._passes = Passes(chain, blocks, self.stage == 0, self.stage + 1 == self.stages)
        refuse_states([part for part in self.module.modules()
                       if id(part) in elsewhere or getattr(part, "on_another_stage", False)], None, _STAGED)
        if self.stages > 1:
            refuse_norms([tensor for _, tensor in parts.parameters], f"{_STAGED}.clip_grad_norm_()")

    def watch(self, optimizer: torch.optim.Optimizer, groups: list[list[str]]) -> None:
        """``stages`` calls it. Args: groups: names of the parameters that each of the optimizer's groups had."""
        self._optimizer, self._groups = optimizer, groups
        if self.stages > 1:
            refuse_states([], optimizer, _STAGED)

    def forward_backward(self, *args: Any, scale: float | None = None, **batch: Any) -> torch.Tensor:
        """Forward and backward of a batch, in micro-batches. Collective. If a stage has no memory for them, the batch
        is repeated in twice as many, until they have one sample each; later batches have so many from the start.

        Adds to the parameters' gradients, as ``backward()`` of the batch's mean loss does; with replicas it is the mean over
        all of their batches. The arguments are the module's, and ``labels`` or ``targets``, which it does not get;
        tensors with as many rows as the first one are cut, in tuples, lists and dicts, too. A module that has an
        argument called ``scale`` or ``targets`` gets it by position.

        Args:
            scale: of the gradients, None being 1: 1/k where k batches are one step, as ``(loss / k).backward()``.

        Returns: the mean loss, a float64 scalar without a graph and the same on every rank.

        Raises:
            bimetal.Error: ``aborted`` where another stage's forward or backward has failed; gradients are as before then,
                on all ranks, and the next batch may come. ``call_mismatch`` where the ranks of a replica have unlike
                batches. ``peer_lost`` and ``timeout`` name the stage.
        """
        if not torch.is_grad_enabled():
            raise error("forward_backward() under no_grad: evaluate() has no backward", "invalid_argument")
        self._require_ours(args, [*batch, *([] if scale is None else ["scale"])], ("scale", "targets"))
        factor = 1.0 if scale is None else scale
        return self._through(args, batch, lambda told, forward: self._core.train(told, factor, forward))

    def evaluate(self, *args: Any, **batch: Any) -> torch.Tensor:
        """The mean loss alone. Collective. Raises what ``forward_backward`` does."""
        self._require_ours(args, list(batch), ("targets",))
        return self._through(args, batch, self._core.evaluate)

    def state_dict(self, rank: int | None = 0) -> dict[str, Any]:
        """The whole module's, on the CPU, on the rank of the group that is named; the others' are empty. None: all. Collective."""
        values = gather(self._first, rank, self.group)
        return {key: self._shapes[key] if name is None else values[name]
                for key, name in self._keys.items()} if self._gets(rank) else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on with it, whole on every rank, and each reads its stage's part. bimetal.Error ``invalid_argument``
        where names or shapes are not the module's; nothing is changed then."""
        states.require_same(self._shapes, state_dict)
        with torch.no_grad():
            for key, name in self._keys.items():
                if name in self._tensors:
                    self._tensors[name].copy_(state_dict[key])

    def _told(self) -> list[Whole]:
        return [piece for piece in self.pieces if piece.name in self._first]

    def _counts(self, piece: Whole) -> bool:
        return self._core.counts(piece.tensor)

    def _gather(self, own: dict[str, torch.Tensor], root: int | None) -> dict[str, torch.Tensor]:
        return gather(own, root, self.group)

    def __repr__(self) -> str:
        ranges = [(begin, (*self.begins, len(self.units))[number + 1] - 1) for number, begin in enumerate(self.begins)
                  if number in self._place.own()]
        units = ", ".join(f"{begin}-{end} ({self.units[begin]} … {self.units[end]})" if end > begin
                          else f"{begin} ({self.units[begin]})" for begin, end in ranges)
        elements = sum(piece.tensor.numel() for piece in self.pieces)
        return f"stage {self.stage} of {self.stages}: units {units}, {elements} trained parameters"

    def _through(self, args: tuple, batch: dict[str, Any], compute: Callable[..., float | None]) -> torch.Tensor:
        """Again in twice as many micro-batches, and so from then on, where a stage has no memory for them."""
        given = self._learning.batch(self.module, args, batch)
        loss = None
        while loss is None:
            told, forward = self._prepare(given)
            with torch.autocast(self._device.type, enabled=False):
                loss = compute(told, forward)
            if loss is None:
                self._finer *= 2
        self._seen = True
        return torch.tensor(loss, dtype=torch.float64)

    def _require_ours(self, args: tuple, given: list[str], ours: tuple[str, ...]) -> None:
        """Our keywords must not be the module's own."""
        signature = inspect.signature(self.module.forward)
        for name in ours:
            if name in given and name in signature.parameters and name not in signature.bind_partial(*args).arguments:
                raise error(f"{type(self.module).__name__}.forward() has an argument called {name}, and here {name}= is "
                            f"{_OURS[name]}: give the module its own by position, or rename it there", "invalid_argument")

    def _prepare(self, batch: Batch) -> tuple[tuple[list[int], int, int], Callable]:
        count = self._finer * (self._micro_batches or _C.usual_micro_batches(
            self._schedule, self.stages, batch.samples, -(-batch.samples // self._micro_batch) if self._micro_batch else 1))
        pieces, last = batch.pieces(count), self.stage + 1 == self.stages
        kind = self._device.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def forward(chunk: int, micro_batch: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            self._require_frozen()
            args, kwargs, targets = pieces[micro_batch]
            piece = self._own[chunk]
            if len(inputs) > 1:
                self._passes.values = int(inputs[1])
            with torch.autocast(kind, dtype=dtype) if enabled else contextlib.nullcontext():
                outputs = self._passes.forward(piece, inputs[0] if inputs else None, lambda: self.module(*args, **kwargs))
                if not (last and piece.last):
                    return [outputs] if self._seen else [outputs, torch.tensor(self._passes.values)]
                mark = None if self._loss_is_of_outputs or not torch.is_grad_enabled() else mark_in_graph()
                loss = self._learning.loss_sum(outputs, targets)
                if mark is not None and loss.requires_grad:
                    require_of_outputs(loss, mark)
                    self._loss_is_of_outputs = True
                if not (self._seen or piece.first or bool(loss.isfinite())):
                    raise error("the first loss is not finite: either the model's numbers are not, or its forward uses "
                                "behind the blocks what it has computed before them, which is on another stage",
                                "not_finite")
                return [loss]

        return (batch.sizes(count), self._learning.weight(batch), batch.digest()), forward

    def _require_frozen(self) -> None:
        """A parameter that was frozen is in no optimizer, and its gradient is on no other stage. Checked within a
        forward, whose errors all stages hear of."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise error(f"parameter {name} requires a gradient, but it was frozen when stages() cut the module, and would never "
                            "move: unfreeze what is to be trained before", "invalid_argument")
