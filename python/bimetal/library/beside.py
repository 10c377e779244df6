"""Other back ends of torch's in the same group, as in ``init_process_group("cuda:nccl,cpu:bimetal")``.

torch puts a process group that is written in Python into the place of the whole group, so that the others would be gone without
a word. Here they have a group of their own beside it, and get the calls on their devices' tensors.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bimetal.library.process_group import LibraryProcessGroup

_CALLS = ("allreduce", "allreduce_coalesced", "allreduce_sparse", "reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced",
          "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced", "broadcast", "allgather",
          "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base", "all_gather_single",
          "all_gather_single_coalesced", "gather", "gather_single", "gather_into_tensor", "scatter", "alltoall", "alltoall_base",
          "all_to_all_single", "send", "recv", "recv_anysource")


def beside_others(place: Any, group: LibraryProcessGroup) -> LibraryProcessGroup:
    """The group, which from then on leaves other devices' tensors to the back ends that torch was asked for. Collective."""
    asked = _asked_of_torch()
    others = {device: name for device, name in asked.items() if name != "bimetal"}
    if not others:
        return group
    name = f"{place.group_id}/beside bimetal"
    group.__class__ = _Beside
    group.others, _ = dist.distributed_c10d._new_process_group_helper(  # type: ignore[attr-defined]
        place.group_size, place.group_rank, list(place.global_ranks_in_group),
        dist.Backend(",".join(f"{device}:{kind}" for device, kind in others.items())), place.store, name, timeout=place.timeout,
        group_desc=name)
    group.devices = frozenset(others)  # type: ignore[attr-defined]
    return group


def _asked_of_torch() -> dict[str, str]:
    """Back ends by device. torch's own function alone knows them."""
    frame = inspect.currentframe()
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back
    return dict(getattr(frame.f_locals["backend_config"], "device_backend_map", {})) if frame is not None else {}


class _Beside(LibraryProcessGroup):
    """One of several back ends: ``others`` has the tensors on ``devices``. Barriers are Bimetal's."""

    others: dist.ProcessGroup
    devices: frozenset[str]

    def _get_backend(self, device: torch.device) -> Any:
        return self.others._get_backend(device) if device.type in self.devices else self

    def _start_coalescing(self, device: torch.device) -> None:
        return self.others._start_coalescing(device) if device.type in self.devices else super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self.others._end_coalescing(device) if device.type in self.devices else super()._end_coalescing(device)

    def abort(self) -> None:
        super().abort()
        self.others.abort()


def _by_device(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(self: _Beside, *args: Any, **options: Any) -> Any:
        if _device_of([*args, *options.values()]) in self.devices:
            return getattr(self.others, call.__name__)(*args, **options)
        return call(self, *args, **options)
    return called


def _device_of(given: Any) -> str | None:
    """The type of the first tensor's, within whatever lists."""
    for one in given:
        found = one.device.type if isinstance(one, torch.Tensor) else _device_of(one) if isinstance(one, list | tuple) else None
        if found:
            return found
    return None


for _name in _CALLS:
    setattr(_Beside, _name, torch._disable_dynamo(_by_device(getattr(LibraryProcessGroup, _name))))
