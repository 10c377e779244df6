"""Bimetal's core for any torch, without a compiled extension: the shared library ``libbimetal_core`` by its C interface
(docs/capi.md), and on it what ``bimetal._C`` has for the backend, the sampler and the balancer, under the same names.

``bimetal._core`` takes whichever of the two fits the torch that is installed.
"""

import inspect

import torch

from bimetal._devices import accelerators, usable_cores
from bimetal.library.interface import check, error, lib, pass_warnings_on, set_error_class
from bimetal.library.meeting import close_all, make_backend
from bimetal.library.process_group import LibraryProcessGroup
from bimetal.library.shares import Balancer, EpochSampler

__all__ = ["Balancer", "EpochSampler", "LibraryProcessGroup", "bytes_sent", "close_all", "device", "end_with_launcher",
           "flight_recorder", "make_backend", "pass_warnings_on", "set_error_class", "transport", "usable_cores"]

# torch.compile goes around what it cannot trace: calls of the core by their addresses.
for _name, _method in list(vars(LibraryProcessGroup).items()):
    if inspect.isfunction(_method) and (_name[0] != "_" or _name.endswith("_base")):
        setattr(LibraryProcessGroup, _name, torch._disable_dynamo(_method))


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


def flight_recorder(backend: LibraryProcessGroup) -> str:
    return backend.flight_recorder()


def bytes_sent(backend: LibraryProcessGroup) -> int:
    return backend.bytes_sent()


def transport(backend: LibraryProcessGroup) -> str:
    return backend.transport()


def end_with_launcher() -> None:
    """This process ends with the mpirun or torchrun that has started it, if one has; not on Windows."""
    check(lib.end_with_launcher())
