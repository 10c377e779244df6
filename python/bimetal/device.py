"""Which device this process computes on."""

from __future__ import annotations

import os

import torch

from bimetal._core import core


def device(spec: str | None = None) -> torch.device:
    """The device for this rank.

    Args:
        spec: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``, ``"auto"`` …; None: the value of the environment variable
            BIMETAL_WORKER, else ``"auto"``: the accelerator of this machine's LOCAL_RANK-th process while there are
            enough of them, else the CPU.

    Raises:
        bimetal.Error: ``unsupported`` if there is no such device (the message lists those there are),
            ``invalid_argument`` for a spec that cannot be read.
    """
    asked = spec or os.environ.get("BIMETAL_WORKER") or "auto"
    return torch.device(core.device(asked, int(os.environ.get("LOCAL_RANK", "0"))))
