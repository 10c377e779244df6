"""``hvd.elastic`` for Keras: the state of fit(), and the callbacks that keep and commit it."""

from __future__ import annotations

from typing import Any

import keras

from bimetal.horovod.core.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from bimetal.horovod.tensorflow.elastic import TensorFlowKerasState

KerasState = TensorFlowKerasState

__all__ = ["CommitStateCallback", "HostsUpdatedInterrupt", "KerasState", "ObjectState", "State",
           "TensorFlowKerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state every few batches, and at the end of each epoch.

    Args:
        state: with the model that is trained.
        batches_per_commit: the more often, the less is lost with a rank, and the longer it takes.
    """

    def __init__(self, state: State, batches_per_commit: int = 1):
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._since = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._since += 1
        if self._since >= self.batches_per_commit:
            self._since = 0
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._since = 0
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps ``state.batch``, the batches of the epoch under way that are done.

    An epoch that is begun anew has as many batches as any: in Keras 3 a callback cannot change that. To make only
    those that are missing, pass ``steps_per_epoch=steps - state.batch`` to fit(). List it before CommitStateCallback.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._before = 0  # batches of this epoch that an earlier world has done

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps ``state.epoch``, the number of epochs that are done: pass it to fit() as initial_epoch.

    List it before CommitStateCallback.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.state.epoch = epoch + 1
