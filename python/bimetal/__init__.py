"""Bimetal: one PyTorch model, trained on unlike machines together.

Importing the package registers the torch.distributed backend ``"bimetal"``::

    import bimetal
    torch.distributed.init_process_group("bimetal")          # CPU, CUDA and MPS tensors alike
    torch.distributed.init_process_group("cuda:nccl,cpu:bimetal")

``bimetal.balance`` gives each rank as much of every batch as it finishes in the same time, ``bimetal.zero`` cuts what
training keeps into shards. docs/python.md has the whole story.
"""

import torch  # noqa: F401  (its libraries must be there before the extension's)

from bimetal import _build, _torch_check

_torch_check.check()

from bimetal import balance, zero  # noqa: E402
from bimetal._errors import Error  # noqa: E402
from bimetal.balance import BalancedBatchSampler, sample_exact_hook, token_exact_hook  # noqa: E402
from bimetal.device import device  # noqa: E402
from bimetal.process_group import (  # noqa: E402
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
    "flight_recorder",
    "monitored_barrier",
    "sample_exact_hook",
    "token_exact_hook",
    "transport",
    "zero",
]
