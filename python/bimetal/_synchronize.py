"""Waiting for a device, in any torch from 2.4 on: torch.accelerator, which knows them all, came with 2.6."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def synchronize(device: torch.device) -> None:
    """Returns when `device` has done all its work; at once for the CPU."""
    if device.type == "cpu":
        return
    own = getattr(torch, device.type)
    if device.type == "mps":  # there is one
        own.synchronize()
    else:
        own.synchronize(device)  # without it, that of the current card


def synchronize_stream(device: torch.device) -> None:
    """Returns when `device` has done the work of this thread's current stream, whatever else it has to do."""
    own = getattr(torch, device.type)
    if device.type != "cpu" and hasattr(own, "current_stream"):
        own.current_stream(device).synchronize()
    else:
        synchronize(device)


@contextlib.contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Work given to `device` in here does not wait for its current stream, if the device has other streams, and is done
    at the end."""
    if device.type in ("cuda", "xpu"):
        own = getattr(torch, device.type)
        stream = own.Stream(device)
        with own.stream(stream):
            yield
        stream.synchronize()
    else:
        yield
        synchronize(device)
