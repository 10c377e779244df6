"""The engine: forward, backward and update of one training loop on all ranks."""

import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bimetal._errors import error
from bimetal.balance import BalancedBatchSampler
from bimetal.balance.bucket_check import require_all
from bimetal.balance.loss_check import uncounted_labels
from bimetal.deepspeed import checkpoint
from bimetal.deepspeed.config import Config
from bimetal.deepspeed.shards import EngineShards
from bimetal.device import device
from bimetal.zero.optimizer import Piece
from bimetal.zero.passes import hook_gradients

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class DeepSpeedEngine(nn.Module):
    """The engine that ``initialize`` returns. A step is ``gradient_accumulation_steps`` times forward, backward, step.

    The gradients of a step are those of the mean of its micro-batches' losses, each the mean over the samples of all
    ranks, whatever their shares are. Losses that are means over tokens are weighed by these: those of Hugging Face's
    causal models by themselves, others after ``set_tokens``.

    Attributes: module, device, local_rank, optimizer, lr_scheduler, training_dataloader, global_steps, micro_steps,
    skipped_steps.
    """

    def __init__(self, module: nn.Module, config: Config):
        super().__init__()
        self.config = config
        self.device = device()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.module = module.to(self.device)
        self.optimizer: Any = None
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.sampler: BalancedBatchSampler | None = None
        self.global_steps = self.micro_steps = self.skipped_steps = 0
        self._norm: float | None = None
        self._tokens: int | None = None
        self._counts = True  # whether the backward under way does
        self._in_backward = False
        self._in_buckets: set[int] = set()  # parameters, at stage 0
        self._summed = False  # in the backward under way, over the ranks, at stage 0
        self.shards: EngineShards | None = None  # stages 1 to 3
        self._idle = True  # no sample of this rank's has counted in this step
        self._ranks = dist.get_world_size() if dist.is_initialized() else 1
        # Beside the module, not within: state_dict() has its names.
        self.__dict__["_reducer"] = self._make_reducer() if self._ranks > 1 and config.level == 0 else self.module

    def _make_reducer(self) -> DistributedDataParallel:
        reducer = DistributedDataParallel(self.module, gradient_as_bucket_view=True,
                                          bucket_cap_mb=self.config.bucket_mb)
        reducer.register_comm_hook(None, self._sum)
        return reducer

    def cut(self, shards: str | Sequence[float]) -> None:
        """At stages 1 to 3: the module and the optimizer become this rank's part of them. ``initialize`` calls it."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.__dict__["_accumulators"] = hook_gradients(trained, self._require_backward)
        if self.config.level == 0:
            return
        self.shards = EngineShards(self.module, self.optimizer, self.config, shards, lambda: self._counts)
        if self.sampler is not None:
            self.sampler.leave_out(lambda: self.shards.sharded.wait_seconds)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, in the configuration's precision."""
        with self._autocast():
            if not (self.training and torch.is_grad_enabled()):
                return self.module(*args, **kwargs)
            if isinstance(kwargs.get("labels"), torch.Tensor) and (uncounted := uncounted_labels(self.module)) is not None:
                self.set_tokens(int((kwargs["labels"][..., uncounted:] != -100).sum()))
            if self._reducer is not self.module:
                self._reducer.require_backward_grad_sync = self.is_gradient_accumulation_boundary()
            return self._reducer(*args, **kwargs)

    def set_tokens(self, tokens: int) -> None:
        """How many tokens the loss of the micro-batch under way is the mean of, on this rank; on all ranks or none."""
        self._tokens = int(tokens)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Adds the loss's gradients to the step's; those of the last micro-batch are summed over the ranks."""
        weight = self._weight()
        boundary = self.is_gradient_accumulation_boundary()
        self._counts = weight > 0
        self._idle = self._idle and not self._counts
        scaled = loss * (weight / self.config.accumulation * self.config.core.loss_scale)
        self._in_backward, self._summed = True, False
        try:
            with contextlib.nullcontext() if self.shards is None else self.shards.backward(boundary):
                scaled.backward(retain_graph=retain_graph)
        finally:
            self._in_backward = False
        if boundary and self._reducer is not self.module and not self._summed:
            raise error("engine.backward(): the loss is not of engine(…) in training, called since the last step(), so that its "
                        "gradients have not been summed over the ranks: call the engine itself, not engine.module or another "
                        "method of it, or take ZeRO's stage 1. A parameter that was frozen since initialize() has the same effect",
                        "unsupported")
        if self.sampler is not None and not (boundary and self._reducer is not self.module):
            self.sampler.stop_clock(self.device)
            self.sampler.exchange_figures()
            self.sampler.restart_clock()
        return loss

    def step(self) -> None:
        """Updates the parameters after the last micro-batch of a step, and otherwise only counts."""
        if self.is_gradient_accumulation_boundary():
            self._update()
        self.micro_steps += 1

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro-batch under way is the last one of its step."""
        return (self.micro_steps + 1) % self.config.accumulation == 0

    def summed_gradients(self) -> dict[str, torch.Tensor]:
        """For checkpoints, at stage 0: the gradients of the step under way, of all ranks, by the parameter's name;
        empty between steps. Collective."""
        if self.micro_steps % self.config.accumulation == 0:
            return {}
        gradients = {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                     for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        if self._ranks > 1:
            for gradient in gradients.values():
                dist.all_reduce(gradient)
        return gradients

    def take_gradients(self, pieces: list[Piece], gradients: list[torch.Tensor | None]) -> None:
        """The other way round, for this rank's pieces: at stage 0 rank 0 goes on with them, at later stages each rank
        with its part."""
        self.zero_grad()
        if self.shards is not None:
            self.shards.take_up(gradients)
            return
        if self._ranks > 1 and dist.get_rank() != 0:
            return
        for piece, gradient in zip(pieces, gradients, strict=True):
            if gradient is not None:
                piece.tensor.grad = gradient.to(piece.tensor)
                self._idle = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.shards is not None:
            self.shards.forget()
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def save_checkpoint(self, save_dir: str, tag: str | None = None,
                        client_state: dict[str, Any] | None = None) -> bool:
        """Writes SAVE_DIR/TAG, each rank its part, and then its name into SAVE_DIR/latest. Collective.

        Args:
            tag: None is "global_stepN".
            client_state: the values that the script wants to find again; it must go through JSON.
        """
        return checkpoint.save(self, save_dir, tag or f"global_step{self.global_steps}", client_state or {})

    def load_checkpoint(self, load_dir: str, tag: str | None = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False) -> tuple[str | None, dict[str, Any] | None]:
        """Goes on from LOAD_DIR/TAG (None: the latest) of rank 0, each rank with its part; the ranks and the stage may be
        others than those that wrote it. Returns its path and the client state, or (None, None) if there is none."""
        parts = {"optimizer": load_optimizer_states and not load_module_only,
                 "scheduler": load_lr_scheduler_states and not load_module_only, "loop": not load_module_only}
        return checkpoint.load(self, load_dir, tag, load_module_strict, parts)

    def train_batch_size(self) -> int:
        return self.config.step_batch

    def train_micro_batch_size_per_gpu(self) -> int:
        """The most samples of a rank for each backward."""
        return self.config.micro_batch

    def gradient_accumulation_steps(self) -> int:
        return self.config.accumulation

    def zero_optimization_stage(self) -> int:
        return self.config.core.zero_level

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step's gradients, before clipping; None unless they are clipped or scaled."""
        return self._norm

    @property
    def loss_scale(self) -> float:
        return self.config.core.loss_scale

    def _autocast(self) -> torch.autocast:
        precision = _TYPES.get(self.config.train["precision"])
        return torch.autocast(self.device.type, dtype=precision, enabled=precision is not None)

    def _weight(self) -> float:
        """The weight of a mean over this rank's part of the micro-batch in the mean over all of it."""
        share = 1 / self._ranks if self.sampler is None else self.sampler.weight
        if self._tokens is None:
            return share
        mine, self._tokens = (self._tokens if share > 0 else 0), None
        everyone = torch.tensor([mine])
        if self._ranks > 1:
            dist.all_reduce(everyone)
        return mine / max(1, int(everyone))

    def _require_backward(self, _: tuple) -> None:
        """Hook of each gradient."""
        if not self._in_backward:
            raise error("the engine's parameters get gradients by a backward that is not its own, and that it has not weighed: call "
                        "engine.backward(loss) in place of loss.backward(). Where the loss is another engine's, freeze this one's "
                        "parameters (requires_grad_(False)) meanwhile, or train both as one module", "unsupported")

    def _sum(self, _: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP's hook. Losses have been weighed, so that the sum over the ranks is the gradient."""
        gradients, last = bucket.buffer(), bucket.is_last()
        if bucket.index() == 0:
            self._in_buckets.clear()
        self._in_buckets.update(map(id, bucket.parameters()))
        if last:
            require_all(self.module, self._in_buckets, "deepspeed.initialize()")
        self._summed = True
        if self._idle:
            gradients.zero_()  # a product with 0 would keep values that are not finite
        if last and self.sampler is not None:
            self.sampler.stop_clock(self.device)
        summed = dist.all_reduce(gradients, async_op=True).get_future()
        if last and self.sampler is not None:
            self.sampler.exchange_figures()

        def finish(done: torch.futures.Future) -> torch.Tensor:
            if last and self.sampler is not None:
                self.sampler.restart_clock()
            return done.value()[0]

        return summed.then(finish)

    def _update(self) -> None:
        core, limit = self.config.core, self.config.train["clip_norm"]
        gradients = self._gradients()
        scaled = self.config.train["precision"] == "float16"
        finite = True
        if scaled or limit > 0:
            if scaled and gradients:
                torch._foreach_mul_(gradients, 1 / core.loss_scale)
            self._norm = self._agreed_norm(gradients)
            finite = math.isfinite(self._norm)
            if finite and gradients and limit > 0 and limit / (self._norm + 1e-6) < 1:
                torch._foreach_mul_(gradients, limit / (self._norm + 1e-6))
        core.update_loss_scale(not finite)
        if not finite and not scaled:
            raise error(f"step {self.global_steps + 1}: the gradients are not finite (NaN or infinity), so nothing was "
                        "updated; a lower learning rate or a look at the data may help", "not_finite")
        if finite:
            self.optimizer.step()
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()
        else:
            self.skipped_steps += 1
        self.zero_grad()
        self.global_steps += 1
        self._idle = True

    def _gradients(self) -> list[torch.Tensor]:
        """The summed gradients of the step: this rank's pieces, or all."""
        if self.shards is not None:
            return self.shards.finish()
        return [parameter.grad for group in self.optimizer.param_groups for parameter in group["params"]
                if parameter.grad is not None]

    def _agreed_norm(self, gradients: list[torch.Tensor]) -> float:
        """Rank 0's: devices differ in the last bits. Not finite if any rank's is not."""
        if self.shards is not None:
            return self.shards.norm(gradients)
        if not gradients:
            return 0.0
        norm = float(torch.stack([part.double().cpu() for part in torch._foreach_norm(gradients)]).norm())
        if self._ranks == 1:
            return norm
        finite = math.isfinite(norm)
        told = torch.tensor([norm if dist.get_rank() == 0 and finite else 0.0, 0.0 if finite else 1.0],
                            dtype=torch.float64)
        dist.all_reduce(told)
        return float(told[0]) if told[1] == 0 else math.nan
