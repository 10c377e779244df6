"""Horovod's functions for TensorFlow 2: ``import bimetal.horovod.tensorflow as hvd``.

See ``bimetal.horovod.tensorflow.keras`` for Keras, and docs/horovod.md for what is there and what is not.
"""

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError("bimetal.horovod.tensorflow needs TensorFlow, which cannot be imported here "
                      f"({error}): pip install tensorflow-cpu, or tensorflow") from error

from bimetal._errors import Error as HorovodInternalError
from bimetal.horovod.core.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from bimetal.horovod.core.objects import allgather_object, broadcast_object
from bimetal.horovod.core.process_set import ProcessSet, global_process_set
from bimetal.horovod.core.process_sets import add_process_set, remove_process_set
from bimetal.horovod.core.recording import start_timeline, stop_timeline
from bimetal.horovod.core.submit import barrier, join
from bimetal.horovod.tensorflow import elastic
from bimetal.horovod.tensorflow.compression import Compression
from bimetal.horovod.tensorflow.functions import broadcast_variables
from bimetal.horovod.tensorflow.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    local_rank_op,
    local_size_op,
    rank_op,
    reducescatter,
    size_op,
)
from bimetal.horovod.tensorflow.optimizer import DistributedOptimizer
from bimetal.horovod.tensorflow.tape import DistributedGradientTape

__all__ = [
    "Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer", "HorovodInternalError",
    "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set", "allgather", "allgather_object", "allreduce",
    "alltoall", "barrier", "broadcast", "broadcast_object", "broadcast_variables", "ccl_built", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled",
    "grouped_allgather", "grouped_allreduce", "grouped_reducescatter", "init", "is_homogeneous", "is_initialized",
    "join", "local_rank", "local_rank_op", "local_size", "local_size_op", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "rank_op", "reducescatter", "remove_process_set",
    "rocm_built", "shutdown", "size", "size_op", "start_timeline", "stop_timeline",
]
