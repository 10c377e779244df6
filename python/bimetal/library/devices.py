"""Which devices there are, as torch sees them."""

from __future__ import annotations

import os

import torch

from bimetal.library.interface import error


def accelerators() -> list[str]:
    """As torch names them."""
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        found += [f"xpu:{i}" for i in range(torch.xpu.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def device(spec: str, local_rank: int) -> str:
    """The name of a device for "auto", "cpu", "mps", "cuda" or "cuda:1" and their like."""
    there = [*accelerators(), "cpu"]
    if spec == "auto":
        return there[local_rank] if local_rank < len(there) else "cpu"
    if spec in there:
        return spec
    ours = [name for name in there if name.split(":")[0] == spec]
    if ours:
        return ours[local_rank % len(ours)]
    if spec.split(":")[0] not in ("cpu", "cuda", "mps", "xpu") or "=" in spec:
        raise error(f"'{spec}' names no device: write auto, cpu, cuda, cuda:1, mps or xpu", "invalid_argument")
    raise error(f"there is no device '{spec}' here; there are: {', '.join(there)}", "unsupported")


def usable_cores() -> int:
    """Cores that this process may use: its affinity counted."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
