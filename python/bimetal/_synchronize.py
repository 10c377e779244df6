"""Waiting for a device, in any torch from 2.4 on: torch.accelerator, which knows them all, came with 2.6."""

from __future__ import annotations

import torch


def synchronize(device: torch.device) -> None:
    """Returns when `device` has done what was asked of it; at once for the CPU."""
    if device.type == "cpu":
        return
    own = getattr(torch, device.type)
    if device.type == "mps":  # there is one
        own.synchronize()
    else:
        own.synchronize(device)  # without it, that of the current card
