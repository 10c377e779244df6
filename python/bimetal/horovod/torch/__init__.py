"""Horovod's functions for PyTorch: ``import bimetal.horovod.torch as hvd`` in place of ``import horovod.torch as hvd``.

Scripts written for Horovod run as they are; docs/horovod.md has the table of supported functions.
"""

from bimetal.horovod.core import basics
from bimetal.horovod.core.basics import *  # noqa: F403
from bimetal.horovod.core.compression import Compression
from bimetal.horovod.torch import async_ops, elastic, ops
from bimetal.horovod.torch.async_ops import *  # noqa: F403
from bimetal.horovod.torch.ops import *  # noqa: F403
from bimetal.horovod.torch.ops import SyncBatchNorm, broadcast_optimizer_state, broadcast_parameters
from bimetal.horovod.torch.optimizer import DistributedOptimizer

__all__ = [*basics.__all__, *async_ops.__all__, *ops.__all__, "Compression", "DistributedOptimizer", "SyncBatchNorm",
           "broadcast_optimizer_state", "broadcast_parameters", "elastic"]
