"""``hvd.elastic`` for TensorFlow: the variables that a loop keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from bimetal.horovod.core.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from bimetal.horovod.tensorflow.ops import broadcast_variables

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(ObjectState):
    """Variables, and values of plain data as attributes.

    Args:
        variables: tf.Variables or Keras's.
        session: of Horovod's signature, which for TensorFlow 1 has one; must be None.
        kwargs: attributes and their first values.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any):
        if session is not None:
            raise ValueError("sessions of TensorFlow 1 are not supported")
        self._variables = list(variables or ())
        self._values: list[Any] = []
        super().__init__(**kwargs)
        self._save_variables()

    def variables(self) -> list[Any]:
        """The variables that are kept, in the same order on all ranks."""
        return self._variables

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self.variables(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self.variables(), root_rank=0)
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._values = [numpy.array(variable) for variable in self.variables()]


class TensorFlowKerasState(TensorFlowState):
    """A Keras model and its optimizer, and values of plain data as attributes::

        state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    Args:
        model: built, so that it has its variables.
        optimizer: None is the model's own.
        backend: of Horovod's signature, without effect.
        kwargs: attributes and their first values.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        del backend
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if not model.built:
            raise ValueError("the model has no variables yet: give it an Input, or call model.build(), first")
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(**kwargs)

    def variables(self) -> list[Any]:
        return [*self.model.variables, *(self.optimizer.variables if self.optimizer is not None else [])]
