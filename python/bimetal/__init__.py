"""Bimetal: one PyTorch model, trained on unlike machines together.

Importing the package registers the torch.distributed backend ``"bimetal"``::

    import bimetal
    torch.distributed.init_process_group("bimetal")          # CPU, CUDA and MPS tensors alike
    torch.distributed.init_process_group("cuda:nccl,cpu:bimetal")

``bimetal.balance`` gives each rank as much of every batch as it finishes in the same time, ``bimetal.zero`` cuts what
training keeps into shards, ``bimetal.pipeline`` a module into stages, ``bimetal.tensor`` its matrices into parts.
docs/python.md has the whole story.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "bimetal.command"]:
    from bimetal import _plain_errors
    sys.excepthook = _plain_errors.show

import torch  # noqa: E402, F401  (its libraries must be there before ours that need them)

from bimetal import _build, _core, balance, elastic, pipeline, tensor, zero  # noqa: F401
from bimetal._errors import Error
from bimetal.balance import BalancedBatchSampler, monitor, page, sample_exact_hook, token_exact_hook
from bimetal.device import device
from bimetal.process_group import (
    bytes_sent,
    flight_recorder,
    monitored_barrier,
    register,
    transport,
)

__version__ = _build.VERSION

register()

__all__ = [
    "BalancedBatchSampler",
    "Error",
    "balance",
    "bytes_sent",
    "device",
    "elastic",
    "flight_recorder",
    "monitor",
    "monitored_barrier",
    "page",
    "pipeline",
    "sample_exact_hook",
    "tensor",
    "token_exact_hook",
    "transport",
    "zero",
]
