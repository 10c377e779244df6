"""Which devices and processors this process may use."""

from __future__ import annotations

import os

import torch

from bimetal import _C, _torch_check


def accelerators() -> list[str]:
    """As torch names them."""
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [f"xpu:{i}" for i in range(torch.xpu.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def usable_cores() -> int:
    """Cores that this process may use: its affinity counted, and with the torch library the container's quota, too."""
    if _torch_check.fits():
        return _C.usable_cores()
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
