"""Runs a collective that all ranks have agreed on. For the engine's thread.

Each ``start`` function begins the exchange of one request and returns a function that waits for it and gives the
results. A rank that has joined has no request: it takes part with zeros, or with no rows, and drops what it receives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from bimetal._errors import Error
from bimetal._synchronize import synchronize
from bimetal.horovod.core.request import Misuse, ReduceOp, Request, Signature, dtype_of

Found = Sequence[Signature | None]
Finish = Callable[[], Any]

_TORCH_OPS = {ReduceOp.Average: dist.ReduceOp.SUM, ReduceOp.Sum: dist.ReduceOp.SUM, ReduceOp.Min: dist.ReduceOp.MIN,
              ReduceOp.Max: dist.ReduceOp.MAX, ReduceOp.Product: dist.ReduceOp.PRODUCT}


def start(group: dist.ProcessGroup, ranks: Sequence[int], found: Found, request: Request | None) -> Finish:
    """Begins it; ``found`` is every rank's signature, ``ranks`` their numbers among all. All ranks call it in the same
    order."""
    signature = next(one for one in found if one)
    if signature.kind == "broadcast":
        signature = replace(signature, root=list(ranks).index(signature.root))  # the group counts its own
    for event in request.events if request else ():
        event.synchronize()
    return _STARTS[signature.kind](group, found, signature, request)


def _all(works: Sequence[Any], result: Any) -> Finish:
    def finish() -> Any:
        for work in works:
            work.wait()
        return result
    return finish


def _zeros(signature: Signature) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype_of(dtype)) for dtype, shape in signature.tensors]


def _scale(tensor: torch.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).to(tensor.dtype))


def _finish_scale(tensor: torch.Tensor, signature: Signature, size: int) -> None:
    if signature.op == ReduceOp.Average:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.div_(size)
        else:
            tensor.div_(size, rounding_mode="trunc")
    _scale(tensor, signature.postscale)


def _allreduce(group: dist.ProcessGroup, found: Found, signature: Signature, request: Request | None) -> Finish:
    tensors = request.tensors if request else _zeros(signature)
    options = dist.AllreduceOptions()
    options.reduceOp = _TORCH_OPS[ReduceOp(signature.op)]
    buffers = _fuse(tensors)
    works = []
    for buffer, _ in buffers:
        _scale(buffer, signature.prescale)
        works.append(group.allreduce([buffer], options))

    def finish() -> list[torch.Tensor]:
        for work in works:
            work.wait()
        for buffer, parts in buffers:
            _finish_scale(buffer, signature, group.size())
            offset = 0
            for part in parts:
                part.copy_(buffer[offset:offset + part.numel()].view(part.shape))
                offset += part.numel()
        return tensors
    return finish


def _fuse(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Buffers to be exchanged, each with the tensors that it was filled from: none if it is a tensor itself.

    A group of several tensors goes as one buffer for each type, as all ranks do it."""
    if len(tensors) == 1:
        return [(tensors[0], [])]
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    device = tensors[0].device if tensors else None
    return [(torch.cat([part.reshape(-1).to(device) for part in parts]), parts) for parts in by_type.values()]


def _allgather(group: dist.ProcessGroup, found: Found, signature: Signature, request: Request | None) -> Finish:
    results, works = [], []
    for index, (dtype, shape) in enumerate(signature.tensors):
        rows = [one.tensors[index][1][0] if one else 0 for one in found]
        mine = request.tensors[index] if request else torch.empty((0, *shape[1:]), dtype=dtype_of(dtype))
        whole = mine.new_empty((sum(rows), *shape[1:]))
        works.append(group.allgather([list(whole.split(rows))], [mine.contiguous()]))
        results.append(whole)
    return _all(works, results)


def _broadcast(group: dist.ProcessGroup, found: Found, signature: Signature, request: Request | None) -> Finish:
    tensors = request.tensors if request else _zeros(signature)
    options = dist.BroadcastOptions()
    options.rootRank = signature.root
    return _all([group.broadcast([tensor], options) for tensor in tensors], tensors)


def _alltoall(group: dist.ProcessGroup, found: Found, signature: Signature, request: Request | None) -> Finish:
    assert request is not None  # not with ranks that have joined
    mine = request.tensors[0].contiguous()
    receive = [one.splits[group.rank()] for one in found if one]
    got = mine.new_empty((sum(receive), *mine.shape[1:]))
    work = group.alltoall_base(got, mine, receive, list(request.signature.splits), dist.AllToAllOptions())
    return _all([work], [got, torch.tensor(receive, dtype=torch.int32)])


def _reducescatter(group: dist.ProcessGroup, found: Found, signature: Signature, request: Request | None) -> Finish:
    tensors = request.tensors if request else _zeros(signature)
    options = dist.ReduceScatterOptions()
    options.reduceOp = _TORCH_OPS[ReduceOp(signature.op)]
    rank, size = group.rank(), group.size()
    works, results = [], []
    for tensor in tensors:
        rows = rows_of_each(tensor.shape[0], size)
        padded = _padded(tensor, rows)
        _scale(padded, signature.prescale)
        part = padded.new_empty((rows[0], *padded.shape[1:]))
        works.append(group._reduce_scatter_base(part, padded, options))
        results.append(part[:rows[rank]])

    def finish() -> list[torch.Tensor]:
        for work in works:
            work.wait()
        for result in results:
            _finish_scale(result, signature, size)
        return results
    return finish


def rows_of_each(rows: int, size: int) -> list[int]:
    """How reducescatter shares rows out: the first ranks have one more where it does not come out even."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _padded(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """A copy in which every rank's part has as many rows as the first one's."""
    padded = tensor.new_zeros((len(rows), rows[0], *tensor.shape[1:]))
    for rank, part in enumerate(tensor.split(rows)):
        padded[rank, :rows[rank]] = part
    return padded.flatten(0, 1)


def _barrier(group: dist.ProcessGroup, found: Found, signature: Signature, request: Request | None) -> Finish:
    return _all([], [])  # the round that agreed on it has been one


_STARTS = {"allreduce": _allreduce, "allgather": _allgather, "broadcast": _broadcast, "alltoall": _alltoall,
           "reducescatter": _reducescatter, "barrier": _barrier}


def catch_up(results: Any) -> None:
    """Waits until devices have finished results, so that any thread and stream may use them."""
    devices = {tensor.device for tensor in results or () if isinstance(tensor, torch.Tensor)}
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        else:
            synchronize(device)


def check(signature: Signature, ranks: Sequence[int]) -> None:
    """Refuses requests that cannot work whatever the other ranks say. Raises bimetal.Error."""
    for dtype, shape in signature.tensors:
        if signature.kind in ("allgather", "alltoall", "reducescatter") and not shape:
            raise Misuse(f"{signature}: a tensor without dimensions has no rows; pass tensor.reshape(1)")
        if dtype == "bool" and signature.kind == "allreduce" and signature.op == ReduceOp.Average:
            raise Misuse(f"{signature}: bool has no average")
    if signature.op == ReduceOp.Adasum:
        raise Error(f"{signature}: Adasum is not there; use op=Average or op=Sum", "unsupported")
    size = len(ranks)
    if signature.kind == "broadcast" and signature.root not in ranks:
        raise Misuse(f"{signature}: root rank {signature.root} is not one of the {size} ranks {_in_short(ranks)}")
    if signature.kind == "alltoall":
        rows = signature.tensors[0][1][0]
        if len(signature.splits) != size or sum(signature.splits) != rows or min(signature.splits) < 0:
            raise Misuse(f"{signature}: splits {list(signature.splits)} do not share {rows} rows out to {size} ranks")


def _in_short(ranks: Sequence[int]) -> str:
    if list(ranks) == list(range(len(ranks))):
        return f"0 to {len(ranks) - 1}"
    return ", ".join(map(str, ranks))
