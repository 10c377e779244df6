"""A batch sampler whose batches differ between ranks, and follow their speed while it runs."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from bimetal._core import core
from bimetal._errors import Error, error
from bimetal._synchronize import synchronize
from bimetal.balance import step_check
from bimetal.balance.bucket_check import BucketCheck
from bimetal.balance.figures import RankFigures, Step
from bimetal.balance.others import fsdp_is_there, refuse_to_be_skipped


@dataclass(frozen=True)
class _Batch:
    counts: list[int]  # samples of each rank
    work: list[int]  # their cost: their lengths, or 1 each
    at: tuple[int, int]  # epoch and sample that it began with
    batches: int  # drawn for the optimizer's step, this one included
    samples: int  # of all of these, over all ranks


class BalancedBatchSampler(Sampler[list[int]]):
    """This rank's part of each global batch, as lists of indices, for ``DataLoader(batch_sampler=…)``.

    Over all ranks an epoch visits every sample exactly once, whatever the shares do: nothing is padded,
    repeated or dropped, and the last batch may be short. Every rank makes the same number of steps. Each
    iteration over the sampler is one epoch, with an order of its own.

    Shares follow the time that each rank computes, which ``sample_exact_hook`` or ``token_exact_hook`` measures (see
    there for exact gradients: of means over samples, of means over tokens); they are the same on all ranks without
    a message of their own but a few numbers per rank and step. A rank that is too slow to help gets a share of 0: its
    batch is then one sample that counts nothing (``weight`` is 0), so that a loop needs no special case and DDP's
    reductions find every rank.

    Args:
        dataset: anything with a length, or that length. At least one sample; the same on all ranks.
        global_batch: samples per step over all ranks, at least 1.
        group: the process group that shares the work; None is the default group, or this process alone if
            there is none. It must serve CPU tensors.
        seed: of the order of samples; the same on all ranks.
        shuffle: False keeps the data set's order.
        balance: "auto" follows the speed, "equal" never moves, "fixed" splits as ``weights`` say.
        weights: for "fixed", one for each rank.
        prefetch: batches that the DataLoader draws ahead: ``num_workers * prefetch_factor`` (2 each unless
            told otherwise). Shares lag by as many steps.
        lengths: what each sample costs to compute, for samples that are unlike: the tokens of each sequence, at least
            1; the same on all ranks. Shares are then of tokens, and each global batch, which still has
            ``global_batch`` samples, is so dealt out that the ranks' tokens follow them.
        accumulate: batches of one step of the optimizer, whose gradients are exchanged once, with the last one's: all
            others under ``no_sync()``, as ``Accelerator(gradient_accumulation_steps=…)`` does it. At an epoch's end a
            step may have fewer. More than 1 goes with ``weigh``.

    Raises:
        bimetal.Error: ``invalid_argument`` for numbers that cannot work.
    """

    def __init__(self, dataset: Sized | int, global_batch: int, *, group: dist.ProcessGroup | None = None,
                 seed: int = 0, shuffle: bool = True, balance: str = "auto", weights: Sequence[float] = (),
                 prefetch: int = 0, lengths: Iterable[int] = (), accumulate: int = 1):
        if accumulate < 1:
            raise Error(f"accumulate={accumulate}: a step has at least one batch", "invalid_argument")
        self.group = group
        self.global_batch = global_batch
        self.accumulate = accumulate
        self.size = dataset if isinstance(dataset, int) else len(dataset)
        alone = not dist.is_initialized()
        self.rank = 0 if alone else dist.get_rank(group)
        self._ranks = 1 if alone else dist.get_world_size(group)
        self._policy, self._weights = balance, list(weights)
        self._prefetch = prefetch
        lengths = [int(length) for length in lengths]
        self.counts_in = "tokens" if lengths else "samples"  # what shares are of
        self._sampler = core.EpochSampler(self.size, seed, shuffle, lengths)
        self._balancer = self._balancer_of([])
        self._next_epoch: tuple[int, int] = (0, 0)  # and the sample to begin with
        self._iteration = 0  # which one is under way; another number ends those before it
        self._under_way: deque[_Batch] = deque()  # drawn and not finished, oldest first
        self._weighed = 0  # of the step under way, its batches that ``weigh`` has had
        self._step = (1, 1)  # batches and samples of the step that is being drawn
        self._figures: deque[Step] = deque()  # not yet learnt from
        self._finished = 0  # steps of this epoch
        self.exchanges = 0  # of gradients, so far
        self._learnt = 0
        self._waits: Callable[[], float] = lambda: 0.0  # seconds so far that are not computing
        self._began = 0.0  # computing, in seconds of _clock()
        self._stopped: float | None = None  # computing: until restart_clock
        self._waited = math.nan  # seconds so far for others' gradients; not known of a loop that has no clock
        self._seconds = 0.0  # of the step under way
        self._device = ""  # that it computed on, where that is known
        self.watch: Any = None  # bimetal.monitor's
        self._tokens: int | None = None  # of the batch under way, this rank's
        self._weighed_tokens: int | None = None  # of those that ``weigh`` has had, where it knew them
        self._looked_at = self.rank != 0  # whether its loss goes with its hook
        self._bucket_check = BucketCheck()
        self.all_tokens: Any = None  # of the last step: see send_tokens

    def __len__(self) -> int:
        """Steps of an epoch."""
        return -(-self.size // self.global_batch)

    def __iter__(self) -> Iterator[list[int]]:
        refuse_to_be_skipped(sys._getframe(1))
        step_check.loop_begins()
        self._learn(len(self._figures))
        self._go_to(*self._next_epoch)  # without batches drawn ahead by a loop that was left early
        iteration, drawn = self._iteration, 0
        self._next_epoch = (self._next_epoch[0] + 1, 0)
        self._finished = self._learnt = 0
        self._began = self._clock()
        if self.watch is not None:
            self.watch.begin()
        while self._sampler.remaining > 0:
            batch = self._draw(drawn)
            drawn += 1
            done = self._sampler.remaining == 0
            yield batch
            if iteration != self._iteration and not done:
                raise RuntimeError("this loop over the BalancedBatchSampler goes on after set_epoch(), load_state_dict() or another "
                                   "loop over it: leave it, and begin a new one")
            if done:
                break
        if self.watch is not None:
            self.watch.epoch_ends()

    @property
    def shares(self) -> list[int]:
        """Samples of each rank in the next full global batch; the sum is ``global_batch``. With ``lengths`` tokens of
        each rank; the sum is a global batch's average."""
        return self._balancer.shares

    @property
    def counts(self) -> list[int]:
        """Samples of each rank in the batch under way: the oldest drawn that ``weigh`` has not had (with
        ``accumulate``), or whose gradients are not reduced."""
        return self._batch_under_way().counts

    @property
    def weight(self) -> float:
        """This rank's part bᵢ/B in the step under way: its samples in the batch, by those of all ranks in the step."""
        batch = self._batch_under_way()
        return batch.counts[self.rank] / batch.samples

    @property
    def loss_scale(self) -> float:
        """n·bᵢ/B over n ranks: what to multiply a mean over samples by where gradients are averaged over ranks and no
        hook can be had, as with FSDP. 0 for a rank without samples."""
        return self.weight * self._ranks

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss that counts by its batch's part of a step of several; with ``accumulate``, once for each batch,
        before its backward. The loop goes on to divide by the number of batches, as Accelerate does by itself::

            loss = sampler.weigh(criterion(model(inputs), targets)) / accumulate

        The sum of a step's gradients is then that of the mean over all of its samples. With ``set_tokens`` or
        ``count_tokens``, for ``token_exact_hook``, it is the mean over all of its tokens.
        """
        batch, weight = self._batch_under_way(), self.weight
        if self.accumulate == 1 or self._weighed == batch.batches:
            raise RuntimeError("weigh() goes with accumulate=… of more than 1, once for each batch")
        self._weighed += 1
        tokens = None if self._tokens is None else self.tokens if weight > 0 else 0
        if self.watch is not None:
            self.watch.add_loss(loss, batch.counts[self.rank] if tokens is None else tokens)
        if tokens is None:
            return loss * (weight * self.accumulate)
        self._weighed_tokens = (self._weighed_tokens or 0) + tokens
        self._tokens = None
        return loss * (tokens * self.accumulate)

    @property
    def tokens(self) -> int:
        """The tokens that ``set_tokens`` or ``count_tokens`` gave for the step under way; 0 for a rank without
        samples."""
        if self.weight == 0:
            return 0
        if self._tokens is None:
            raise RuntimeError("token_exact_hook does not know this step's tokens: call sampler.count_tokens(labels, "
                               "shifted=...) or sampler.set_tokens(n) before each backward")
        return self._tokens

    def set_tokens(self, tokens: int) -> None:
        """For ``token_exact_hook``: the number that divides this rank's loss of the step under way. Call it before the
        loss's backward.

        Args:
            tokens: of this rank alone, at least 0. If the step is computed in micro-batches: the tokens of all of them.
        """
        if int(tokens) < 0:
            raise ValueError(f"a batch cannot have {int(tokens)} tokens")
        self._tokens = int(tokens)

    def count_tokens(self, labels: torch.Tensor, *, shifted: bool, ignore_index: int = -100) -> int:
        """``set_tokens`` with the number of tokens that a loss over these labels is the mean of.

        Args:
            labels: of this rank's batch, one row a sequence. (On an accelerator counting them waits for it.)
            shifted: True where each position predicts the next one's label, so that the first counts for nothing, as
                in Hugging Face's causal models; False where labels stand where they are predicted.
            ignore_index: the label that counts for nothing.

        Returns:
            the number, which is also Hugging Face's ``num_items_in_batch``.
        """
        targets = labels[..., 1:] if shifted else labels
        tokens = int((targets != ignore_index).sum())
        self.set_tokens(tokens)
        return tokens

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self._next_epoch[0]

    def set_epoch(self, epoch: int, batches: int | None = None) -> None:
        """The epoch that the next iteration runs; without it they count up from 0. A step under way is given up.

        Args:
            epoch: at least 0. If it is the epoch that ``load_state_dict`` has brought, the place in it stays.
            batches: global batches of the epoch that are over; None: none, or those that were loaded.
        """
        if batches is not None:
            self._go_to(epoch, min(batches * self.global_batch, self.size))
        else:
            self._go_to(epoch, self._next_epoch[1] if epoch == self._next_epoch[0] else 0)

    def _go_to(self, epoch: int, offset: int) -> None:
        """The one owner of the place: the next iteration begins here, and nothing is under way."""
        if offset == self.size:
            epoch, offset = epoch + 1, 0
        self._sampler.seek(epoch, offset)
        self._next_epoch = (epoch, offset)
        self._iteration += 1
        self._under_way.clear()
        self._weighed = 0
        self._tokens = self._weighed_tokens = None

    def state_dict(self) -> dict[str, int]:
        """The place from which a checkpoint made now goes on: the oldest batch that is not finished."""
        if self._under_way:
            epoch, offset = self._under_way[0].at
        elif 0 < self._sampler.remaining < self.size:
            epoch, offset = self._sampler.position
        else:
            epoch, offset = self._next_epoch
        return {"epoch": epoch, "offset": offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration goes on there. The number of ranks may be another one. A step under way is given up."""
        self._go_to(state["epoch"], state["offset"])

    def require_elastic(self) -> None:
        """For bimetal.elastic: raises where it cannot follow changes of the world."""
        if self.group is not None:
            raise error("a BalancedBatchSampler of a group of its own ends with that group: leave out group=", "unsupported")
        if self._weights:
            raise error("weights has a number for each rank, and whose would be gone with a lost rank is not known: let shares follow "
                        "the speed (balance=\"auto\")", "unsupported")
        if self.watch is not None:
            raise error("bimetal.monitor() watches a world that stays as it is: leave it out", "unsupported")

    def regroup(self) -> None:
        """For bimetal.elastic: the default group is another one now. The place stays, to the sample, and so do
        measurements of ranks that have stayed. Collective."""
        place = self.state_dict()
        rates = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(rates, torch.tensor([self._balancer.alone_rate(self.rank)], dtype=torch.float64))
        self.rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._balancer = self._balancer_of([(0.0, 1 / float(rate) if rate > 0 else 0.0) for rate in rates])
        self._figures.clear()
        self._bucket_check = BucketCheck()
        self.load_state_dict(place)

    def _balancer_of(self, probes: list[tuple[float, float]]) -> Any:
        return core.Balancer(self._ranks, self._sampler.mean_weight(self.global_batch), self._policy, self._weights, probes)

    def finish_step(self, seconds: float | None = None) -> None:
        """Ends the step under way; for loops without the hook (which calls it otherwise). Collective.

        Args:
            seconds: that this rank computed in this step, without waiting for others; None: not known, and
                nothing is learnt of this rank.

        Raises:
            bimetal.Error: ``unsupported`` for seconds where a module is FSDP's: its ranks wait for each other within a pass.
        """
        if seconds and fsdp_is_there():
            raise Error("finish_step(seconds): FSDP's ranks wait for each other within a pass, so that all take alike and shares cannot "
                        "follow: call finish_step(), with balance=\"fixed\" and weights, or bimetal.zero.shard(…, sampler=sampler) "
                        "in FSDP's place [unsupported]", "unsupported")
        self._seconds = seconds or 0.0
        self.exchange_figures()

    def first_look(self) -> bool:
        """For the hook: True once, on rank 0."""
        looked_at, self._looked_at = self._looked_at, True
        return not looked_at

    def check_bucket(self, bucket: dist.GradBucket) -> None:
        """For the hook: raises where DDP has not all gradients that are to be exchanged."""
        self._bucket_check(bucket, self._iteration)

    def gradient_weight(self, tokens: bool = False) -> float:
        """For the hook: the weight of this rank's gradients in the sum over the ranks."""
        if self.accumulate == 1:
            return self.tokens if tokens else self.weight
        batches = self._under_way[0].batches if self._under_way else 1
        if self._weighed != batches:
            raise RuntimeError(f"gradients are exchanged after sampler.weigh(loss) for {self._weighed} batches; this step "
                               f"has {batches} (accumulate={self.accumulate}): all but the last under no_sync()")
        if tokens and self._weighed_tokens is None:
            raise RuntimeError("token_exact_hook does not know this step's tokens: call sampler.count_tokens(labels, "
                               "shifted=...) or sampler.set_tokens(n) before each sampler.weigh(loss)")
        return float(any(batch.counts[self.rank] for batch, _ in zip(self._under_way, range(batches))))

    def send_tokens(self, device: torch.device) -> None:
        """For the hook: begins the sum of the ranks' tokens, ``all_tokens``, a future of [int64 [1]] on `device`.
        Beside the gradients, because it has to be exact whatever their type."""
        count = self.tokens if self.accumulate == 1 else self._weighed_tokens
        mine = torch.tensor([count], device=device)
        self.all_tokens = dist.all_reduce(mine, group=self.group, async_op=True).get_future()

    def stop_clock(self, device: torch.device) -> None:
        """For the hook: all gradients of this rank are there, once `device` has caught up."""
        synchronize(device)
        self._device = str(device)
        self._stopped = self._clock()
        self._seconds = self._stopped - self._began

    def restart_clock(self) -> None:
        """For the hook: nothing is waited for any more."""
        self._began = self._clock()
        if self._stopped is not None:
            waited = self._waited if self._waited > 0 else 0.0
            self._waited, self._stopped = waited + self._began - self._stopped, None

    def leave_out(self, waits: Callable[[], float]) -> None:
        """For parts of the computation that wait for other ranks: `waits` tells how many seconds they have done so."""
        self._waits = waits

    def _clock(self) -> float:
        return time.perf_counter() - self._waits()

    def exchange_figures(self) -> None:
        """For the hook: ends the step under way, and tells the others how long it took here."""
        weight = self._loss_weight(self._batch_under_way())
        batches = [self._under_way.popleft() for _ in range(min(self._under_way[0].batches, len(self._under_way)))]
        self._finished += 1
        self.exchanges += 1
        self._weighed = 0
        self._tokens = self._weighed_tokens = None
        told = self.watch.figures(weight, self._device) if self.watch is not None else ()
        step = Step(RankFigures(float(sum(batch.work[self.rank] for batch in batches)), self._seconds, self._waited + self._waits(), *told),
                    self.group, batches[0].at[0], batches[0].at[1] + batches[0].samples)
        self._figures.append(step)
        if self.watch is not None:
            self.watch.step_ends(step, last=step.end == self.size)

    def _loss_weight(self, batch: _Batch) -> float:
        """The weight of this rank's loss of the batch in the mean over all ranks."""
        mine = batch.counts[self.rank]
        return float(self._tokens if mine and self._tokens is not None else mine)

    def work_of_step(self) -> int:
        """The average work of a step: samples, or tokens with ``lengths``."""
        return self._sampler.mean_weight(self.global_batch) * self.accumulate

    def alone_rate(self, rank: int) -> float:
        """The work per second that the rank would do by itself; 0 if it is not known."""
        return self._balancer.alone_rate(rank)

    def _batch_under_way(self) -> _Batch:
        if not self._under_way:
            raise RuntimeError("no batch is under way: gradients are reduced within a loop over the "
                               "BalancedBatchSampler's DataLoader, once for each batch")
        return self._under_way[min(self._weighed, len(self._under_way) - 1)]

    def _draw(self, number: int) -> list[int]:
        # Never from newer figures than all ranks have at their drawing of this batch.
        known = max(0, number - self._prefetch) // self.accumulate
        if self._finished < known:
            done = self._finished * self.accumulate
            raise RuntimeError(
                f"batch {number} is drawn while the gradients of batch {done} have not been exchanged: the loop "
                f"accumulates several batches (pass accumulate=…, and sampler.weigh(loss)), or the DataLoader draws ahead "
                f"(pass prefetch=num_workers * prefetch_factor, at least {number - done}), or the loop skipped a "
                f"backward, or did not call the model that DDP wraps (or another method than forward), or froze a parameter since, "
                f"or the model lacks the hook: model.register_comm_hook(sampler, bimetal.sample_exact_hook) or "
                f"bimetal.token_exact_hook")
        self._learn(known - self._learnt)
        at = self._sampler.position
        if at[1] == self.size:
            at = (at[0] + 1, 0)
        if number % self.accumulate == 0:
            left = self._sampler.remaining
            self._step = (min(self.accumulate, -(-left // self.global_batch)),
                          min(self.accumulate * self.global_batch, left))
        counts, work, mine, first = self._sampler.deal(self._balancer.shares, self.global_batch, self.rank)
        self._under_way.append(_Batch(counts, work, at, *self._step))
        return mine or [first]

    def _learn(self, steps: int) -> None:
        for _ in range(steps):
            figures = self._figures.popleft().figures()
            self._balancer.observe([int(rank.work) for rank in figures], [rank.seconds for rank in figures])
            self._learnt += 1
