"""Equal beginnings, and gradients of all ranks, for TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from bimetal.horovod.core.process_set import global_process_set, or_all
from bimetal.horovod.core.request import ReduceOp
from bimetal.horovod.tensorflow import ops
from bimetal.horovod.tensorflow.bridge import call, run_collective
from bimetal.horovod.tensorflow.compression import Compression


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: Any = global_process_set) -> None:
    """Assigns the root's values to variables, as one exchange. The same variables, in the same order, on all ranks."""
    variables = [variable for variable in variables if _is_numeric(variable)]
    if not variables:
        return
    values = [tf.convert_to_tensor(variable) for variable in variables]
    received = call(lambda *arrays: run_collective("broadcast", "variables", arrays, process_set, root=root_rank),
                    values, [value.dtype for value in values], [value.shape for value in values])
    for variable, value in zip(variables, received, strict=True):
        variable.assign(value)


def _is_numeric(variable: Any) -> bool:
    """Seeds and counters are; strings and resources (of lookup tables, say) are not."""
    dtype = tf.as_dtype(variable.dtype)
    return dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex


def reduce_gradients(gradients: Sequence[Any], compression: type = Compression.none, sparse_as_dense: bool = False,
                     op: ReduceOp = ReduceOp.Average, predivide: float = 1.0,
                     process_set: Any = global_process_set) -> list[Any]:
    """The ranks' gradients combined: dense ones as one exchange, rows of tf.IndexedSlices gathered, None left. Those of a
    rank outside of the process set stay its own."""
    if not or_all(process_set).included():
        return list(gradients)
    given = [tf.convert_to_tensor(one) if sparse_as_dense and isinstance(one, tf.IndexedSlices) else one
             for one in gradients]
    dense = [index for index, one in enumerate(given) if one is not None and not isinstance(one, tf.IndexedSlices)]
    scaling = {"op": op, "prescale_factor": 1.0 / predivide, "postscale_factor": predivide,
               "process_set": process_set}
    reduced = ops.grouped_allreduce([given[index] for index in dense], compression=compression, **scaling)
    for index, one in zip(dense, reduced, strict=True):
        given[index] = one
    return [ops.allreduce(one, **scaling) if isinstance(one, tf.IndexedSlices) else one for one in given]
