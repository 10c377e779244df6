"""A gradient tape and a Keras optimizer that use the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bimetal._errors import Error
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.core.submit import global_process_set, or_all
from bimetal.horovod.tensorflow.bridge import Compression
from bimetal.horovod.tensorflow.ops import reduce_gradients


class _DistributedTape:
    """DistributedGradientTape's additions to a tape's class."""

    _reducing: dict[str, Any]

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the tape's own, combined over the ranks. Collective."""
        own = super().gradient(target, sources, output_gradients, *args, **kwargs)  # type: ignore[misc]
        flat = tf.nest.flatten(own)
        return tf.nest.pack_sequence_as(own, reduce_gradients(flat, **self._reducing))


def DistributedGradientTape(gradtape: tf.GradientTape | None = None,  # noqa: N802  (Horovod's name)
                            device_dense: str = "", device_sparse: str = "", compression: type = Compression.none,
                            sparse_as_dense: bool = False, op: ReduceOp = ReduceOp.Average,
                            gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                            groups: Sequence[Any] | int | None = None,
                            process_set: Any = global_process_set, persistent: bool = False,
                            watch_accessed_variables: bool = True) -> Any:
    """A tape that does what the given one does, with the gradients of all ranks::

        with tf.GradientTape() as tape:
            loss = …
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    Args:
        gradtape: one that has recorded, or is to record; None: a new one, with the last two arguments.
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set: as for DistributedOptimizer.
        device_dense, device_sparse, num_groups, groups: of Horovod's signature, without effect: dense gradients
            travel as one exchange.
    """
    process_set = or_all(process_set)
    tape = gradtape or tf.GradientTape(persistent=persistent, watch_accessed_variables=watch_accessed_variables)
    if gradient_predivide_factor != 1.0 and op != ReduceOp.Average:
        raise ValueError("gradient_predivide_factor goes with op=Average")
    kind = type(tape)
    made = object.__new__(type(kind.__name__, (_DistributedTape, kind), {"__doc__": kind.__doc__}))
    made.__dict__.update(tape.__dict__)
    made._reducing = {"compression": compression, "sparse_as_dense": sparse_as_dense, "op": op,
                      "predivide": gradient_predivide_factor, "process_set": process_set}
    return made


class DistributedKerasOptimizer:
    """DistributedOptimizer's additions to a Keras optimizer's class."""

    _reducing: dict[str, Any]
    _factor = 1.0  # from the mean over backward passes to the requested reduction

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Keras has the whole gradients of an update here, accumulated and unscaled: the ranks' gradients are combined
        here."""
        reduced = reduce_gradients([one * self._factor if self._factor != 1.0 else one for one in grads],
                                   **self._reducing)
        return super()._clip_gradients(reduced)  # type: ignore[misc]


def DistributedOptimizer(optimizer: Any, name: str | None = None, device_dense: str = "",  # noqa: N802
                         device_sparse: str = "", compression: type = Compression.none, sparse_as_dense: bool = False,
                         gradient_predivide_factor: float = 1.0, op: ReduceOp = ReduceOp.Average,
                         backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
                         num_groups: int = 0, groups: Any = None, process_set: Any = global_process_set) -> Any:
    """Makes a Keras 3 optimizer use the gradients of all ranks, in ``fit()`` as in loops of one's own.

    Args:
        optimizer: any of Keras's or derived from them. It is changed in place, so that a loaded one keeps its state.
        compression: ``Compression.none`` or ``Compression.fp16``.
        sparse_as_dense: exchanges tf.IndexedSlices as tensors; without it their rows are gathered.
        gradient_predivide_factor: with Average, divides by it before the sum and by size()/factor after.
        op: Average, Sum, Min, Max or Product.
        backward_passes_per_step: gradients of so many batches are added up before they are exchanged and used.
        average_aggregated_gradients: divides that sum by the number of passes.
        process_set: whose gradients; on ranks outside of it they are their own.
        name, device_dense, device_sparse, num_groups, groups: of Horovod's signature, without effect.

    Returns:
        The optimizer.

    Raises:
        bimetal.Error: ``unsupported`` for Adasum and what is no optimizer of Keras 3 on TensorFlow.
    """
    process_set = or_all(process_set)
    if op == ReduceOp.Adasum:
        raise Error("Adasum is not there; use op=hvd.Average or op=hvd.Sum", "unsupported")
    if not isinstance(optimizer, keras.optimizers.Optimizer) or keras.backend.backend() != "tensorflow":
        raise Error(f"DistributedOptimizer takes optimizers of Keras 3 with TensorFlow as its backend, not "
                    f"{type(optimizer)} with {keras.backend.backend()}; for optimizers of TensorFlow 1 use "
                    f"DistributedGradientTape", "unsupported")
    if isinstance(optimizer, DistributedKerasOptimizer):
        raise ValueError("this optimizer is distributed already")
    if gradient_predivide_factor != 1.0 and op != ReduceOp.Average:
        raise ValueError("gradient_predivide_factor goes with op=Average")
    if backward_passes_per_step > 1:
        if optimizer.built:
            raise ValueError("backward_passes_per_step needs an optimizer that has not been used yet")
        optimizer.gradient_accumulation_steps = backward_passes_per_step
    kind = type(optimizer)
    # Under the original's name a saved model can be loaded without Bimetal.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    optimizer.__class__ = type(kind.__name__, (DistributedKerasOptimizer, kind), names)
    optimizer._reducing = {"compression": compression, "sparse_as_dense": sparse_as_dense, "op": op,
                           "predivide": gradient_predivide_factor, "process_set": process_set}
    if backward_passes_per_step > 1 and not average_aggregated_gradients:
        optimizer._factor = float(backward_passes_per_step)  # Keras divides
    return optimizer
