"""An optimizer whose step uses the gradients of all ranks."""

from __future__ import annotations

import collections
import contextlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from bimetal._errors import Error
from bimetal.horovod.core import world
from bimetal.horovod.core.compression import Compression
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.core.submit import ProcessSet, global_process_set, or_all
from bimetal.horovod.torch.buckets import Bucket, arrange, bucket_bytes

_TOO_MANY_PASSES = ("Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                    "backward_passes_per_step to accumulate gradients locally.")
_ZEROED_TOO_EARLY = ("optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                     "optimizer.synchronize(). This is prohibited as it can cause a race condition.")
_SYNCHRONIZED_TWICE = ("optimizer.step() called without optimizer.skip_synchronize() context after "
                       "optimizer.synchronize(): the gradients are exchanged twice. Use "
                       "optimizer.skip_synchronize() where you call optimizer.synchronize().")


_numbers = itertools.count()
_numbers_of_generation = -1


def _next_number() -> int:
    """Tells the optimizers of a process apart, in the same way on all ranks. It begins anew with each world: to a
    process that joins later its first optimizer is the first."""
    global _numbers, _numbers_of_generation
    if _numbers_of_generation != world.current().generation:
        _numbers, _numbers_of_generation = itertools.count(), world.current().generation
    return next(_numbers)


def _hook(method: weakref.WeakMethod) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        if (alive := method()) is not None:
            alive(parameter)
    return hook


class _Exchange:
    """The buckets of one optimizer, and how far the backward pass under way has filled them."""

    def __init__(self, buckets: Sequence[Bucket], passes: int, process_set: ProcessSet):
        self.passes = passes  # backward passes per step
        self._process_set = process_set
        self.buckets = list(buckets)
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self._seen: collections.Counter[torch.nn.Parameter] = collections.Counter()
        self._full: collections.Counter[int] = collections.Counter()  # parameters that are ready, by bucket
        # Weakly: an optimizer that has been dropped must not exchange what belongs to its successor.
        here = weakref.WeakMethod(self._gradient_is_there)
        hooks = [parameter.register_post_accumulate_grad_hook(_hook(here)) for parameter in self._bucket_of]
        weakref.finalize(self, lambda: [hook.remove() for hook in hooks])

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has begun what step() or synchronize() will end."""
        return bool(self._seen)

    def is_needed(self) -> bool:
        """Whether there are others: in the process set, if this rank is of it at all."""
        return self._process_set.size() > 1 and self._process_set.included()

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        if not self.is_needed():
            return
        if self._seen[parameter] >= self.passes:
            raise AssertionError(_TOO_MANY_PASSES)
        self._seen[parameter] += 1
        if self._seen[parameter] < self.passes:
            return
        bucket = self._bucket_of[parameter]
        self._full[id(bucket)] += 1
        if self._full[id(bucket)] == len(bucket.parameters):
            bucket.begin()

    def finish(self) -> None:
        try:
            for bucket in self.buckets:
                if not bucket.under_way:
                    bucket.begin()
            for bucket in self.buckets:
                bucket.finish()
        finally:
            self.forget()

    def forget(self) -> None:
        for bucket in self.buckets:
            bucket.forget()
        self._seen.clear()
        self._full.clear()


class _Distributed:
    """DistributedOptimizer's additions to an optimizer's class."""

    _exchange: _Exchange
    _synchronized = False
    _should_synchronize = True

    def synchronize(self) -> None:
        """Waits until the gradients are those of all ranks; for clipping them before step()."""
        if self._exchange.is_needed():
            self._exchange.finish()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """``with optimizer.skip_synchronize(): optimizer.step()`` after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's own step, after the gradients have been exchanged. Raises bimetal.Error."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(_SYNCHRONIZED_TWICE, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own. AssertionError while gradients are being exchanged."""
        if self._exchange.under_way:
            raise AssertionError(_ZEROED_TOO_EARLY)
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own; an exchange that has failed is forgotten."""
        self._exchange.forget()
        self._synchronized = False
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Between steps."""
        self._exchange.passes = passes


def DistributedOptimizer(optimizer: torch.optim.Optimizer,  # noqa: N802  (Horovod's name)
                         named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
                         compression: type = Compression.none, backward_passes_per_step: int = 1,
                         op: ReduceOp = ReduceOp.Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: Sequence[Sequence[torch.nn.Parameter]] | int | None = None,
                         sparse_as_dense: bool = False,
                         process_set: Any = global_process_set) -> Any:
    """An optimizer that does what the given one does, with the gradients of all ranks.

    Gradients are exchanged during ``loss.backward()``, several parameters at a time, as soon as they are there;
    ``step()`` waits for them. With the mean over a rank's batch as loss and equal batches, they are those of the mean
    over all ranks' batches.

    Args:
        optimizer: any of torch's or derived from them; its state and parameter groups are shared with the result.
        named_parameters: ``model.named_parameters()``; the parameters of the optimizer must be among them.
        compression: ``Compression.none`` or ``Compression.fp16``.
        backward_passes_per_step: gradients of so many backward passes are added up before they are exchanged.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: with Average, divides by it before the sum and by size()/factor after.
        num_groups, groups: how parameters travel together: a number of groups of equal length, or lists of
            parameters. By default as HOROVOD_FUSION_THRESHOLD (bytes, 16 MiB) says.
        sparse_as_dense: exchanges sparse gradients as dense ones; without it their rows are gathered.
        process_set: whose gradients. On ranks outside of it the optimizer is as it was.

    Returns:
        An object whose class is derived from the optimizer's, with ``synchronize()`` and ``skip_synchronize()``.

    Raises:
        ValueError: for names that are missing, doubled or not in pairs.
        bimetal.Error: ``unsupported`` for Adasum; from ``step()`` what goes wrong in the exchange:
            ``peer_lost``, ``timeout``, ``call_mismatch`` where the ranks' models differ.
    """
    process_set = or_all(process_set)
    if op == ReduceOp.Adasum:
        raise Error("Adasum is not there; use op=hvd.Average or op=hvd.Sum", "unsupported")
    if gradient_predivide_factor != 1.0 and op != ReduceOp.Average:
        raise ValueError("gradient_predivide_factor goes with op=Average")
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is distributed already")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step is at least 1")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    _check_names(parameters, named_parameters)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    scaling = {"op": op, "prescale": 1.0 / gradient_predivide_factor, "postscale": gradient_predivide_factor}
    prefix = f"optimizer.{_next_number()}.gradients"
    buckets = [Bucket(f"{prefix}.{number}", bucket, compression, scaling, sparse_as_dense, process_set)
               for number, bucket in enumerate(_grouped(trained, num_groups, groups))]
    return _derive(optimizer, _Exchange(buckets, backward_passes_per_step, process_set))


def _check_names(parameters: Sequence[torch.nn.Parameter],
                 named: Iterable[tuple[str, torch.nn.Parameter]] | None) -> None:
    if named is None:
        return
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("named_parameters are pairs (name, parameter), as model.named_parameters() gives them")
    doubled = [name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1]
    if doubled:
        raise ValueError(f"names in named_parameters must be unique; these come more than once: {', '.join(doubled)}")
    known = {id(parameter) for _, parameter in pairs}
    missing = sum(id(parameter) not in known for parameter in parameters)
    if missing:
        raise ValueError(f"{missing} of the optimizer's {len(parameters)} parameters are not in named_parameters: pass "
                         f"those of the whole model")


def _grouped(parameters: Sequence[torch.nn.Parameter], num_groups: int,
             groups: Sequence[Sequence[torch.nn.Parameter]] | int | None) -> list[list[torch.nn.Parameter]]:
    number = groups if isinstance(groups, int) else num_groups
    if number > 0:
        length = -(-len(parameters) // number)
        groups = [parameters[begin:begin + length] for begin in range(0, len(parameters), length)]
    if not groups or isinstance(groups, int):
        return arrange(parameters, bucket_bytes())
    together = [arrange(list(group), 1 << 62) for group in groups]  # one bucket for each type within a group
    grouped = {id(parameter) for group in groups for parameter in group}
    rest = [parameter for parameter in parameters if id(parameter) not in grouped]
    return [bucket for buckets in together for bucket in buckets] + arrange(rest, bucket_bytes())


def _derive(optimizer: torch.optim.Optimizer, exchange: _Exchange) -> Any:
    """The same optimizer, state and all, as an object of a derived class."""
    kind = type(optimizer)
    # The original's name: schedulers and summaries that look at it find the expected one.
    derived = type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__})
    made = derived.__new__(derived)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a scheduler's wrapper around the original's step
    made._exchange = exchange
    return made
