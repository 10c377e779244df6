"""TensorFlow's tensors on the ranks' process group: through numpy arrays, eagerly and inside tf.function."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import tensorflow as tf
import torch

from bimetal.horovod.core.compression import Compressor, NoneCompressor
from bimetal.horovod.core.submit import submit, wait

# A call's work: arrays in, arrays out.
Body = Callable[..., list[numpy.ndarray]]

# The name of the last call in each graph under construction.
_last_in_graph: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def to_torch(array: Any) -> torch.Tensor:
    """A copy: TensorFlow's arrays may be read-only, and collectives write."""
    copied = numpy.array(array, order="C")
    if copied.dtype == tf.bfloat16.as_numpy_dtype:  # a type that numpy and torch know only by other names
        return torch.from_numpy(copied.view(numpy.uint16)).view(torch.bfloat16)
    return torch.from_numpy(copied)


def to_numpy(tensor: torch.Tensor) -> numpy.ndarray:
    """The tensor's own memory as an array."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(tf.bfloat16.as_numpy_dtype)
    return tensor.numpy()


def run_collective(kind: str, name: str | None, arrays: Sequence[Any], process_set: Any,
                   **more: Any) -> list[numpy.ndarray]:
    """Submits copies of the arrays and waits for the results."""
    handle = submit(kind, name, [to_torch(array) for array in arrays], lambda results: results, process_set, **more)
    return [to_numpy(result) for result in wait(handle)]


def call(body: Body, inputs: Sequence[tf.Tensor], types: Sequence[tf.DType],
         shapes: Sequence[Any]) -> list[tf.Tensor]:
    """Runs ``body`` on the inputs' values: now, or whenever the graph under construction is run.

    Calls within one graph run one after the other, in the order of its construction, so that all ranks ask for their
    collectives in the same order.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array, dtype) for array, dtype in
                zip(body(*[tensor.numpy() for tensor in inputs]), types, strict=True)]
    graph = tf.compat.v1.get_default_graph()
    before = _last_in_graph.get(graph)
    with tf.control_dependencies([graph.get_operation_by_name(before)] if before else []):
        # One output more than the caller wants: a call without any would be no part of the graph's order.
        outputs = tf.numpy_function(lambda *arrays: [*body(*arrays), numpy.int32(0)], list(inputs),
                                    [*types, tf.int32])
    _last_in_graph[graph] = outputs[-1].op.name
    for output, shape in zip(outputs[:-1], shapes, strict=True):
        output.set_shape(shape)
    return outputs[:-1]


class FP16Compressor(Compressor):
    """Floating point as float16: half the bytes of float32, sums rounded to 11 bits."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tf.cast(tensor, ctx)


class Compression:
    """The compressions to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
