"""Horovod's callbacks for Keras."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy

from bimetal.horovod.core import world
from bimetal.horovod.core.submit import submit, wait
from bimetal.horovod.tensorflow.bridge import to_torch
from bimetal.horovod.tensorflow.ops import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the root's weights and optimizer state before they train.

    Models that get their variables in their first batch are broadcast after it.

    Args:
        root_rank: the rank that has the right ones: freshly initialised, or loaded from a checkpoint.
        device: of Horovod's signature, without effect.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.built:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_variables([*self.model.variables, *self.model.optimizer.variables], self.root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces each metric of an epoch by its mean over the ranks. List it before callbacks that read metrics."""

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs:
            return
        names = sorted(logs)
        values = to_torch(numpy.array([float(logs[name]) for name in names], dtype=numpy.float64))
        mean = wait(submit("allreduce", "metrics", [values], lambda results: results[0]))
        logs.update(zip(names, mean.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr`` times a multiplier.

    Args:
        initial_lr: the base, usually that of one rank times size().
        multiplier: a number, or a function of the epoch (counted from 0).
        start_epoch, end_epoch: the epochs in which it works, the latter excluded; None: to the end.
        staircase: once at the beginning of each epoch; else before each batch, with fractions of epochs.
        momentum_correction: of Horovod's signature, without effect: in Keras 3 the momentum is part of the compiled
            step.
        steps_per_epoch: batches of an epoch; None: as fit() says.
    """

    def __init__(self, initial_lr: float, multiplier: float | Callable[[float], float], start_epoch: int = 0,
                 end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
                 steps_per_epoch: int | None = None):
        super().__init__()
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.staircase = staircase or not callable(multiplier)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__} cannot tell how many batches an epoch has; pass "
                                 f"steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(self._epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one rank to ``initial_lr`` over the first epochs, batch by batch
    (Goyal et al., "Accurate, Large Minibatch SGD", 2017).

    Args:
        initial_lr: what it reaches: that of one rank times size().
        warmup_epochs: after how many epochs.
        verbose: 1: rank 0 says when it is over.
        momentum_correction, steps_per_epoch: as for LearningRateScheduleCallback.
    """

    def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
                 steps_per_epoch: int | None = None, verbose: int = 0):
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose
        super().__init__(initial_lr, self._warmed, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)

    def _warmed(self, epoch: float) -> float:
        size = world.current().size
        epoch += 1.0 / self.steps_per_epoch  # so that the last batch has all of it
        return (epoch * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1 and world.current().rank == 0:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", file=sys.stderr)
