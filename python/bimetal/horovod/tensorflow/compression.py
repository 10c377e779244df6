"""Smaller types on the wire, for TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bimetal.horovod.core.compression import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Floating point as float16: half the bytes of float32, sums rounded to 11 bits."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tf.cast(tensor, ctx)


class Compression:
    """What there is to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
