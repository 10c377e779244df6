"""Bimetal's core for any torch, by its C interface (docs/capi.md): process groups, the sampler and the balancer. It is in the
library ``libbimetal_torch`` where there is one for the torch that is installed, else in ``libbimetal_core``."""

import inspect
import re

import torch

from bimetal._devices import accelerators, usable_cores
from bimetal.library.interface import check, error, lib, pass_warnings_on, set_error_class
from bimetal.library.meeting import close_all, make_backend
from bimetal.library.process_group import LibraryProcessGroup
from bimetal.library.shares import Balancer, EpochSampler

__all__ = ["Balancer", "EpochSampler", "LibraryProcessGroup", "bytes_sent", "close_all", "device", "end_with_launcher",
           "flight_recorder", "make_backend", "pass_warnings_on", "set_error_class", "transport", "usable_cores"]

# torch.compile goes around calls that it cannot trace: calls of the core by their addresses.
for _name, _method in list(vars(LibraryProcessGroup).items()):
    if inspect.isfunction(_method) and (_name[0] != "_" or _name.endswith("_base")):
        setattr(LibraryProcessGroup, _name, torch._disable_dynamo(_method))


_WORKER_KEYS = ("threads", "speed", "memory", "precision", "offload_optimizer", "offload_parameters", "offload_path")
_WORKER = re.compile(r"(auto|cpu|cuda|mps|xpu)(?::(\d+))?(?:[:,](\w+=[^,]+(?:,\w+=[^,]+)*))?")


def device(spec: str, local_rank: int) -> str:
    """The name of a device for "auto", "cpu", "mps", "cuda", "cuda:1" and their like. A worker's further settings, as
    in "cpu:threads=2", do not matter here."""
    known = _WORKER.fullmatch(spec)
    if known is None:
        raise error(f"'{spec}' names no device: write auto, cpu, cuda, cuda:1, mps or xpu", "invalid_argument")
    kind, number, options = known.groups()
    for option in options.split(",") if options else ():
        if option.partition("=")[0] not in _WORKER_KEYS:
            raise error(f"worker '{spec}': unknown key \"{option.partition('=')[0]}\" (keys: {', '.join(_WORKER_KEYS)})",
                        "invalid_argument")
    there = [*accelerators(), "cpu"]
    if kind == "auto":
        return there[local_rank] if local_rank < len(there) else "cpu"
    wanted = f"{kind}:{number}" if number else kind
    if wanted in there:
        return wanted
    ours = [name for name in there if name.split(":")[0] == kind] if not number else []
    if ours:
        return ours[local_rank % len(ours)]
    raise error(f"there is no device '{wanted}' here; there are: {', '.join(there)}", "unsupported")


def flight_recorder(backend: LibraryProcessGroup) -> str:
    return backend.flight_recorder()


def bytes_sent(backend: LibraryProcessGroup) -> int:
    return backend.bytes_sent()


def transport(backend: LibraryProcessGroup) -> str:
    return backend.transport()


def end_with_launcher() -> None:
    """This process ends with the mpirun or torchrun that has started it, if one has; not on Windows."""
    check(lib.end_with_launcher())
