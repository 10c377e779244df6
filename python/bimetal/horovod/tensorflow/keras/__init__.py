"""Horovod's functions for Keras 3 on TensorFlow: ``import bimetal.horovod.tensorflow.keras as hvd``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from bimetal.horovod import tensorflow as _tensorflow
from bimetal.horovod.tensorflow import *  # noqa: F403
from bimetal.horovod.tensorflow import Compression, DistributedOptimizer
from bimetal.horovod.tensorflow.keras import callbacks

# By its full name: the star has brought TensorFlow's, which would be taken for it.
import bimetal.horovod.tensorflow.keras.elastic as elastic  # isort: skip
from bimetal.horovod.tensorflow.keras.compile import adapt_compile

adapt_compile()

__all__ = [*(name for name in _tensorflow.__all__ if name != "elastic"), "callbacks", "elastic", "load_model"]


def load_model(filepath: str, custom_optimizers: Any = None, custom_objects: Mapping[str, Any] | None = None,
               compression: type = Compression.none) -> keras.Model:
    """A saved model whose optimizer is distributed, with the state that it was saved with.

    Args:
        filepath: a file that ``model.save()`` has written, with or without Bimetal.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as for keras.models.load_model.
        compression: as for DistributedOptimizer.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    DistributedOptimizer(model.optimizer, compression=compression)
    return model
