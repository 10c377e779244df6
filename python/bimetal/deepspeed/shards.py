"""An engine's model at ZeRO's stages 1 to 3."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from bimetal import zero
from bimetal._together import norm_over_ranks
from bimetal.deepspeed.config import Config
from bimetal.zero.ownership import Advice

_ADVICE = Advice(
    level="stage",
    state="ask for state_dict() within `with deepspeed.zero.GatheredParameters(model.parameters()):`",
    gradients="\"gradient_clipping\" of the configuration clips, engine.get_global_grad_norm() has the norm, engine.zero_grad() drops "
              "gradients, and engine.step() is the optimizer's",
    optimizer="give it to initialize(optimizer=…)")


class EngineShards:
    """The engine's view of a model in shards.

    Args:
        optimizer: of whole parameters; afterwards it has this rank's pieces.
        shards: as ``bimetal.zero.shard`` has it.
        counts: whether the loss of the backward under way counts at all on this rank; the engine has weighed it.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, config: Config,
                 shards: str | Sequence[float], counts: Callable[[], bool]):
        self.level = config.level
        self.sharded = zero.shard(module, optimizer, self.level, shards=shards, bucket_mb=config.bucket_mb,
                                  offload_parameters=config.zero["offload_parameters"],
                                  offload_path=config.zero["offload_path"], keep_below=config.zero["keep_below"],
                                  weigh=lambda: 1.0 if counts() else 0.0)
        self.sharded.advice = _ADVICE
        self._ranks = dist.get_world_size()
        self._carried: dict[str, torch.Tensor] = {}  # by piece: the sums of the step under way so far

    @contextlib.contextmanager
    def backward(self, boundary: bool) -> Iterator[None]:
        """Around a micro-batch's."""
        with contextlib.nullcontext() if boundary else self.sharded.no_sync():
            yield

    def finish(self) -> list[torch.Tensor]:
        """The step's summed gradients of this rank's pieces."""
        self._take_up()
        gradients = []
        for piece in self.sharded.pieces:
            before = self._carried.get(_key(piece))
            if before is not None:
                piece.tensor.grad = before
            if piece.tensor.grad is not None:
                gradients.append(piece.tensor.grad)
        return gradients

    def norm(self, gradients: list[torch.Tensor]) -> float:
        """The norm of all ranks' gradients, the same on each; not finite if any is not."""
        norm = float(norm_over_ranks(gradients, None))
        return norm if math.isfinite(norm) else math.nan

    def carried(self) -> list[torch.Tensor | None]:
        """For checkpoints: the gradients of the step under way so far, for each piece; the step goes on. Collective."""
        self._take_up()
        return [self._carried.get(_key(piece)) for piece in self.sharded.pieces]

    def take_up(self, gradients: list[torch.Tensor | None]) -> None:
        """The step goes on with these gradients, one for each piece."""
        self._carried = {_key(piece): gradient for piece, gradient in zip(self.sharded.pieces, gradients, strict=True)
                         if gradient is not None}

    def forget(self) -> None:
        self._carried = {}

    def _take_up(self) -> None:
        """Adds the sums of passes since then to the earlier ones."""
        self.sharded.finish()
        for piece in self.sharded.pieces:
            gradient, piece.tensor.grad = piece.tensor.grad, None
            if gradient is not None:
                before = self._carried.get(_key(piece))
                self._carried[_key(piece)] = gradient if before is None else before.add_(gradient)


def _key(piece: zero.optimizer.Piece) -> str:
    return f"{piece.name}@{piece.offset}"
