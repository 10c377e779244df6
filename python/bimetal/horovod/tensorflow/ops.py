"""Collectives on TensorFlow's tensors, which can be used eagerly and inside tf.function, and have gradients; equal beginnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy
import tensorflow as tf

from bimetal._errors import Error
from bimetal.horovod.core import world
from bimetal.horovod.core.basics import local_rank, local_size
from bimetal.horovod.core.request import Average, ReduceOp
from bimetal.horovod.core.submit import choose_op, global_process_set, or_all
from bimetal.horovod.tensorflow.bridge import Compression, call, run_collective

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "grouped_allgather", "grouped_allreduce",
           "grouped_reducescatter", "local_rank_op", "local_size_op", "rank_op", "reducescatter", "size_op"]

# AutoGraph would rewrite these functions when they are called inside tf.function: there is nothing in them for it.
_as_it_is = tf.autograph.experimental.do_not_convert


def _reduce(tensors: Sequence[tf.Tensor], name: str | None, process_set: Any, **how: Any) -> list[tf.Tensor]:
    if how["op"] == ReduceOp.Adasum:  # while the graph is built, not when it runs
        raise Error("Adasum is not there; use op=hvd.Average or op=hvd.Sum", "unsupported")
    return call(lambda *arrays: run_collective("allreduce", name, arrays, process_set, **how), tensors,
                [tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors])


def _differentiable_reduce(tensors: Sequence[tf.Tensor], name: str | None, process_set: Any,
                           **how: Any) -> list[tf.Tensor]:
    """The gradient of a sum or average over ranks is the same combination of the ranks' gradients."""
    @tf.custom_gradient
    def reduce(*given: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> Any:
            if how["op"] not in (ReduceOp.Average, ReduceOp.Sum):
                raise ValueError(f"allreduce with op {ReduceOp(how['op']).name} has no gradient")
            return _reduce(upstream, None, process_set, **how)
        return _reduce(given, name, process_set, **how), gradient
    return list(reduce(*tensors))


@_as_it_is
def allreduce(tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
              compression: type = Compression.none, op: ReduceOp | None = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: str | None = None, process_set: Any = global_process_set,
              ignore_name_scope: bool = False) -> Any:
    """Combines the ranks' tensors of one shape and type.

    Args:
        tensor: a tensor, variable or what becomes one; or tf.IndexedSlices, whose rows are gathered.
        device_dense, device_sparse, ignore_name_scope: of Horovod's signature, without effect.
        average, compression, op, prescale_factor, postscale_factor, name: as for ``bimetal.horovod.torch.allreduce``.

    Returns:
        A tensor, the same on all ranks; for tf.IndexedSlices, tf.IndexedSlices.

    Raises:
        bimetal.Error: ``call_mismatch``, ``peer_lost``, ``timeout``, ``unsupported``; inside tf.function TensorFlow
            wraps it into an error of its own with the same text.
    """
    op = choose_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        return _gather_slices(tensor, op, prescale_factor * postscale_factor, name, process_set)
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    reduced, = _differentiable_reduce([small], name, process_set, op=op, prescale=prescale_factor,
                                      postscale=postscale_factor)
    return compression.decompress(reduced, context)


@_as_it_is
def grouped_allreduce(tensors: Sequence[Any], average: bool | None = None, device_dense: str = "",
                      device_sparse: str = "", compression: type = Compression.none, op: ReduceOp | None = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0, name: str | None = None,
                      process_set: Any = global_process_set, ignore_name_scope: bool = False) -> list[tf.Tensor]:
    """``allreduce`` of several tensors as one exchange."""
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    reduced = _differentiable_reduce([small for small, _ in pairs], name, process_set, op=choose_op(average, op),
                                     prescale=prescale_factor, postscale=postscale_factor)
    return [compression.decompress(one, context) for one, (_, context) in zip(reduced, pairs, strict=True)]


def _gather_slices(slices: tf.IndexedSlices, op: ReduceOp, factor: float, name: str | None,
                   process_set: Any) -> tf.IndexedSlices:
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise Error(f"tf.IndexedSlices can be averaged or summed; convert them to a tensor for {op.name}",
                    "unsupported")
    values = allgather(slices.values, name and f"{name}.values", process_set=process_set)
    indices = allgather(slices.indices, name and f"{name}.indices", process_set=process_set)
    if op == ReduceOp.Average:
        factor = factor / tf.cast(size_op(process_set), values.dtype)
    return tf.IndexedSlices(values * factor, indices, dense_shape=slices.dense_shape)


@_as_it_is
def size_op(process_set: Any = global_process_set) -> tf.Tensor:
    """size() as a tensor that is evaluated when the graph runs: elastic jobs change it."""
    return call(lambda: [numpy.int32(or_all(process_set).size())], [], [tf.int32], [()])[0]


@_as_it_is
def rank_op() -> tf.Tensor:
    """rank() as a tensor that is evaluated when the graph runs."""
    return call(lambda: [numpy.int32(world.current().rank)], [], [tf.int32], [()])[0]


@_as_it_is
def local_size_op() -> tf.Tensor:
    """local_size() as a tensor that is evaluated when the graph runs."""
    return call(lambda: [numpy.int32(local_size())], [], [tf.int32], [()])[0]


@_as_it_is
def local_rank_op() -> tf.Tensor:
    """local_rank() as a tensor that is evaluated when the graph runs."""
    return call(lambda: [numpy.int32(local_rank())], [], [tf.int32], [()])[0]


def _any_rows(tensor: tf.Tensor) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(tensor.shape[1:]) if tensor.shape.rank else tf.TensorShape(None)


@_as_it_is
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False,
              process_set: Any = global_process_set) -> tf.Tensor:
    """Joins the ranks' rows in order of rank: (n, …) to (Σ n, …); n may differ between ranks."""
    @tf.custom_gradient
    def gather(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            reduced, = _reduce([upstream], None, process_set, op=ReduceOp.Average, prescale=1.0, postscale=1.0)
            return call(_own_rows(process_set), [reduced, tf.shape(given)], [given.dtype], [given.shape])[0]
        result, = call(lambda array: run_collective("allgather", name, [array], process_set), [given], [given.dtype],
                       [_any_rows(given)])
        return result, gradient
    return gather(tf.convert_to_tensor(tensor))


def _name_of(name: str | None, index: int) -> str | None:
    """The name of one of several tensors that have a name together."""
    return name and f"{name}.{index}"


@_as_it_is
def grouped_allgather(tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
                      process_set: Any = global_process_set) -> list[tf.Tensor]:
    """``allgather`` of several tensors, whose numbers of rows may differ among them and between ranks."""
    return [allgather(tensor, _name_of(name, index), process_set=process_set) for index, tensor in enumerate(tensors)]


def _own_rows(process_set: Any) -> Any:
    """The rows of a gathered array that are this rank's."""
    def body(gathered: Any, shape: Any) -> list[Any]:
        rows = run_collective("allgather", None, [shape[:1]], process_set)[0].tolist()
        begin = sum(rows[:or_all(process_set).rank()])
        return [gathered[begin:begin + int(shape[0])]]
    return body


@_as_it_is
def broadcast(tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
              process_set: Any = global_process_set) -> tf.Tensor:
    """The root's tensor on all ranks; shape and type must be the same everywhere."""
    @tf.custom_gradient
    def spread(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            reduced, = _reduce([upstream], None, process_set, op=ReduceOp.Average, prescale=1.0, postscale=1.0)
            return reduced * tf.cast(tf.equal(rank_op(), root_rank), reduced.dtype)
        result, = call(lambda array: run_collective("broadcast", name, [array], process_set, root=root_rank), [given],
                       [given.dtype], [given.shape])
        return result, gradient
    return spread(tf.convert_to_tensor(tensor))


@_as_it_is
def alltoall(tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
             process_set: Any = global_process_set) -> Any:
    """Sends rows to every rank and receives rows from every rank, as ``bimetal.horovod.torch.alltoall``."""
    def body(array: Any, shares: Any) -> list[Any]:
        shares = [int(share) for share in shares]
        if not shares:
            size = or_all(process_set).size()
            if len(array) % size:
                raise ValueError(f"alltoall without splits needs a number of rows that {size} ranks divide; there are "
                                 f"{len(array)}")
            shares = [len(array) // size] * size
        return run_collective("alltoall", name, [array], process_set, splits=tuple(shares))

    @tf.custom_gradient
    def exchange(given: tf.Tensor, shares: tf.Tensor) -> Any:
        output, received = call(body, [given, shares], [given.dtype, tf.int32], [_any_rows(given), [None]])

        def gradient(upstream: tf.Tensor, _: tf.Tensor) -> Any:
            back, _ = call(lambda array, back: run_collective("alltoall", None, [array], process_set,
                                                              splits=tuple(int(n) for n in back)),
                           [upstream, received], [upstream.dtype, tf.int32], [given.shape, [None]])
            return back, None
        return (output, received), gradient
    shares = tf.convert_to_tensor([] if splits is None else splits, tf.int32)
    output, received = exchange(tf.convert_to_tensor(tensor), shares)
    return output if splits is None else (output, received)


@_as_it_is
def reducescatter(tensor: Any, device_dense: str = "", compression: type = Compression.none, op: ReduceOp = Average,
                  name: str | None = None, process_set: Any = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> tf.Tensor:
    """Combines the ranks' tensors (n, …) and gives each rank its part of the rows: the first ranks have one more
    where n does not come out even."""
    op = choose_op(None, op)
    factor = prescale_factor * postscale_factor

    @tf.custom_gradient
    def scatter(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            if op not in (ReduceOp.Average, ReduceOp.Sum):
                raise ValueError(f"reducescatter with op {op.name} has no gradient")
            gathered, = call(lambda array: run_collective("allgather", None, [array], process_set), [upstream],
                             [upstream.dtype], [given.shape])
            ranks = tf.cast(size_op(process_set), gathered.dtype) if op == ReduceOp.Sum else 1
            return gathered * factor * ranks  # as Horovod defines it
        result, = call(lambda array: run_collective("reducescatter", name, [array], process_set, op=op,
                                                    prescale=prescale_factor, postscale=postscale_factor),
                       [given], [given.dtype], [_any_rows(given)])
        return result, gradient
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(scatter(small), context)


@_as_it_is
def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "", compression: type = Compression.none,
                          op: ReduceOp = Average, name: str | None = None, process_set: Any = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> list[tf.Tensor]:
    """``reducescatter`` of several tensors."""
    return [reducescatter(tensor, device_dense, compression, op, _name_of(name, index), process_set, prescale_factor,
                          postscale_factor) for index, tensor in enumerate(tensors)]


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
    reduced = grouped_allreduce([given[index] for index in dense], compression=compression, **scaling)
    for index, one in zip(dense, reduced, strict=True):
        given[index] = one
    return [allreduce(one, **scaling) if isinstance(one, tf.IndexedSlices) else one for one in given]
