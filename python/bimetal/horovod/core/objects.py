"""Python objects as bytes, such that reading a peer's runs no code of its choosing.

Tensors, numpy arrays, numbers, texts and containers of these: those that torch.load(weights_only=True) accepts. Plain
pickle would let any rank, and any process that gets into the group, run code on all others.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy
import torch

from bimetal.horovod.core import world
from bimetal.horovod.core.submit import submit, wait


def to_bytes(thing: Any) -> bytes:
    """Raises TypeError naming the value that cannot be sent."""
    buffer = io.BytesIO()
    try:
        torch.save(thing, buffer)
        from_bytes(buffer.getvalue())
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TypeError(f"an object of {type(thing)} cannot be sent to other ranks: only tensors, numpy arrays, "
                        f"numbers, strings, bytes, None, and lists, tuples, sets and dicts of these can "
                        f"({reason})") from None
    return buffer.getvalue()


def from_bytes(text: bytes) -> Any:
    """The object; tensors lie on the CPU. Raises pickle.UnpicklingError for bytes that ask for anything else."""
    with torch.serialization.safe_globals(_numpy_types()):
        return torch.load(io.BytesIO(text), weights_only=True, map_location="cpu")


def _numpy_types() -> list[Any]:
    core = getattr(numpy, "_core", None) or numpy.core
    dtypes = {type(numpy.dtype(kind)) for kind in "?bBhHiIlLqQefdgFDGSUMm"}
    return [core.multiarray._reconstruct, core.multiarray.scalar, numpy.ndarray, numpy.dtype, *dtypes]


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The root's object on every rank; the others' arguments are ignored.

    Raises:
        TypeError: on all ranks, for an object that is more than data (see this module).
        bimetal.Error: as broadcast().
    """
    name = name or "object"
    is_root = world.current().rank == root_rank
    content, problem = _try_to_bytes(obj) if is_root else (b"", "")
    length = torch.tensor([-1 if problem else len(content)])
    wait(submit("broadcast", f"{name}.length", [length], lambda _: None, process_set, root=root_rank))
    if length.item() < 0:
        raise TypeError(problem or f"the object of rank {root_rank} cannot be sent: see that rank's error")
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(
        int(length.item()), dtype=torch.uint8)
    wait(submit("broadcast", name, [data], lambda _: None, process_set, root=root_rank))
    return obj if is_root else from_bytes(data.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """Every rank's object, in order of rank. Raises TypeError on all ranks if one cannot be sent."""
    name = name or "object"
    content, problem = _try_to_bytes(obj)
    mine = torch.tensor([-1 if problem else len(content)])
    lengths = wait(submit("allgather", f"{name}.length", [mine], lambda results: results[0], process_set)).tolist()
    if min(lengths) < 0:
        bad = lengths.index(-1)
        raise TypeError(problem or f"the object of rank {bad} cannot be sent: see that rank's error")
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    everyone = wait(submit("allgather", name, [data], lambda results: results[0], process_set))
    return [from_bytes(part.numpy().tobytes()) for part in everyone.split(lengths)]


def _try_to_bytes(thing: Any) -> tuple[bytes, str]:
    try:
        return to_bytes(thing), ""
    except (TypeError, pickle.PicklingError) as error:
        return b"", str(error)
