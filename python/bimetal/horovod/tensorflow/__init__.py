"""Horovod's functions for TensorFlow 2: ``import bimetal.horovod.tensorflow as hvd``.

See ``bimetal.horovod.tensorflow.keras`` for Keras, and docs/horovod.md for the supported parts.
"""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError("bimetal.horovod.tensorflow needs TensorFlow, which cannot be imported here "
                      f"({error}): pip install tensorflow-cpu, or tensorflow") from error

from bimetal.horovod.core import basics
from bimetal.horovod.core.basics import *  # noqa: F403
from bimetal.horovod.tensorflow import elastic, ops
from bimetal.horovod.tensorflow.bridge import Compression
from bimetal.horovod.tensorflow.ops import *  # noqa: F403
from bimetal.horovod.tensorflow.ops import broadcast_variables
from bimetal.horovod.tensorflow.optimizer import DistributedGradientTape, DistributedOptimizer

__all__ = [*basics.__all__, *ops.__all__, "Compression", "DistributedGradientTape", "DistributedOptimizer",
           "broadcast_variables", "elastic"]
