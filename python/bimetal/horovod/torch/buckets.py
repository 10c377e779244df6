"""Gradients of several parameters that travel as one tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from bimetal._errors import Error
from bimetal.horovod.core.request import Handle, ReduceOp
from bimetal.horovod.core.submit import ProcessSet, submit, wait

# Bytes: large enough that latency does not count, small enough that most of a backward pass is still to come when
# the first is sent. The first holds the last layers, whose gradients come first, and is smaller still.
_DEFAULT_BYTES = 16 << 20
_FIRST_BYTES = 1 << 20


class Bucket:
    """Some parameters of one type and device, and the exchange of their gradients. Not thread-safe."""

    def __init__(self, name: str, parameters: Sequence[torch.nn.Parameter], compression: type, scaling: dict[str, Any],
                 sparse_as_dense: bool, process_set: ProcessSet):
        self.parameters = list(parameters)
        self._name = name
        self._compression = compression
        self._scaling = scaling
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._dense: list[torch.nn.Parameter] = []
        self._handles: list[tuple[str, Handle]] = []
        self._context: Any = None
        self._sparse: list[torch.nn.Parameter] = []

    @property
    def under_way(self) -> bool:
        return bool(self._handles)

    @torch.no_grad()
    def begin(self) -> None:
        """Sends the gradients. A parameter without one counts as zeros, as on a rank that did not use it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._sparse = [parameter for parameter in self.parameters
                        if parameter.grad.is_sparse and not self._sparse_as_dense]
        self._dense = [parameter for parameter in self.parameters
                       if self._sparse_as_dense or not parameter.grad.is_sparse]
        if self._dense:
            flat = torch.cat([parameter.grad.to_dense().reshape(-1) for parameter in self._dense])
            small, self._context = self._compression.compress(flat)
            self._handles.append(("dense", submit("allreduce", self._name, [small], lambda results: results[0],
                                                  self._process_set, **self._scaling)))
        for parameter in self._sparse:
            self._handles.append(("sparse", self._gather_rows(parameter)))

    def _gather_rows(self, parameter: torch.nn.Parameter) -> Handle:
        """A sparse gradient is the joined rows of all ranks; rows that come twice are added."""
        if self._scaling["op"] not in (ReduceOp.Average, ReduceOp.Sum):
            raise Error("sparse gradients can be averaged or summed; pass sparse_as_dense=True for other ops",
                        "unsupported")
        gradient = parameter.grad.coalesce()
        name = f"{self._name}.rows.{next(i for i, one in enumerate(self.parameters) if one is parameter)}"
        return submit("allgather", name, [gradient.indices().t().contiguous(), gradient.values()],
                      lambda results: results, self._process_set)

    @torch.no_grad()
    def finish(self) -> None:
        """Waits, and puts the reduced gradients in the place of this rank's."""
        sparse = iter(self._sparse)
        handles, self._handles = self._handles, []
        for kind, handle in handles:
            if kind == "dense":
                self._spread(self._compression.decompress(wait(handle), self._context))
            else:
                self._put_rows(next(sparse), wait(handle))

    def _spread(self, flat: torch.Tensor) -> None:
        parts = [part.view(parameter.shape) for part, parameter in
                 zip(flat.split([parameter.numel() for parameter in self._dense]), self._dense, strict=True)]
        pairs = list(zip(self._dense, parts, strict=True))
        if dense := [(parameter.grad, part) for parameter, part in pairs if not parameter.grad.is_sparse]:
            torch._foreach_copy_([gradient for gradient, _ in dense], [part for _, part in dense])
        for parameter, part in pairs:
            if parameter.grad.is_sparse:  # as the optimizer expects it
                parameter.grad = part.to_sparse(parameter.grad.sparse_dim())

    def _put_rows(self, parameter: torch.nn.Parameter, rows: list[torch.Tensor]) -> None:
        indices, values = rows
        factor = self._scaling["prescale"] * self._scaling["postscale"]
        if self._scaling["op"] == ReduceOp.Average:
            factor /= self._process_set.size()
        parameter.grad = torch.sparse_coo_tensor(indices.t(), values * factor, parameter.shape).coalesce()

    def forget(self) -> None:
        """Drops the exchanges under way, after a failure."""
        self._handles = []


def bucket_bytes() -> int:
    """Horovod's own variable for it, HOROVOD_FUSION_THRESHOLD, where it is set."""
    text = os.environ.get("HOROVOD_FUSION_THRESHOLD", "")
    if not text:
        return _DEFAULT_BYTES
    if not text.isdigit():
        raise Error(f"HOROVOD_FUSION_THRESHOLD={text!r} is not a number of bytes", "invalid_argument")
    return int(text)


def arrange(parameters: Sequence[torch.nn.Parameter], limit: int) -> list[list[torch.nn.Parameter]]:
    """Cuts parameters into buckets of at most ``limit`` bytes (one that is larger has its own), last ones first: so do
    their gradients come. The same on all ranks that have the same model."""
    buckets: list[list[torch.nn.Parameter]] = []
    filled: dict[tuple, tuple[int, list[torch.nn.Parameter]]] = {}  # the open bucket of each type and device
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        size = parameter.numel() * parameter.element_size()
        used, bucket = filled.get(kind, (0, []))
        room = min(_FIRST_BYTES, limit) if buckets and bucket is buckets[0] else limit
        if not bucket or used + size > room:
            used, bucket = 0, []
            buckets.append(bucket)
        bucket.append(parameter)
        filled[kind] = (used + size, bucket)
    return buckets
