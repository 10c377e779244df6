"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bimetal.horovod.core.process_set import global_process_set, or_all
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.tensorflow.compression import Compression
from bimetal.horovod.tensorflow.functions import reduce_gradients


class _DistributedTape:
    """What DistributedGradientTape adds to a tape's class."""

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
        compression: ``Compression.none`` or ``Compression.fp16``.
        sparse_as_dense: exchanges tf.IndexedSlices as tensors; without it their rows are gathered.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: with Average, divides by it before the sum and by size()/factor after.
        process_set: whose gradients; on ranks outside of it they are their own.
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
