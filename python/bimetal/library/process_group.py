"""torch.distributed's process group over the shared library."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler

from bimetal import _C
from bimetal.library.by_store import Splitting, monitored_barrier
from bimetal.library.callbacks import running
from bimetal.library.interface import check, error, failure, lib, numbers, text_of
from bimetal.library.reductions import BitwiseReduction, SparseReduction
from bimetal.library.tensors import (
    HostTensors,
    Reduction,
    Tensors,
    Use,
    are_alike,
    check_alike_sizes,
    check_own,
    counts_of,
    first,
    memory_of,
    milliseconds_of,
    only,
    operation_of,
    plain_type_of,
    reduction_of,
    root_of,
    tensors_of,
)
from bimetal.library.works import OVER, LibraryWork, SeveralWorks, look_at

# Begins one of the core's calls: given the group, the timeout in milliseconds and a place for the work.
_Begin = Callable[[int, int, Any], int]


class LibraryProcessGroup(dist.ProcessGroup):
    """Every collective of torch's, on tensors on any device: those that are not on the CPU are staged through host
    memory. Methods have torch's names, where it has renamed some both.

    Works complete in the order of their calls; works.py tells about futures. Errors are bimetal.Error: raised by the
    call for arguments that cannot work, by the work's wait() otherwise.
    """

    supports_splitting = False
    supports_coalescing = False

    def __init__(self, handle: int, place: Any, store: dist.Store, meet: Callable[[Any], LibraryProcessGroup]) -> None:
        rank, size = place.group_rank, place.group_size
        super().__init__(rank, size)
        self.members = [int(member) for member in place.global_ranks_in_group]  # none: this is a default group
        self._store = store  # this group's alone
        self._meet = meet  # makes a group of another place
        self._splitting = Splitting(place, store)
        self.set_timeout(place.timeout)
        self._name = place.group_id
        self._barriers = 0
        self._handle = handle
        self._process = os.getpid()
        self._rank, self._size = rank, size
        self._sequence = 0
        self._coalescing: list[LibraryWork] | None = None
        self._pending: dict[int, LibraryWork] = {}
        self._of_callbacks: LibraryProcessGroup | None = None

    def __del__(self) -> None:
        # A forked child has the group without its threads: to end it would wait for them.
        if lib is not None and getattr(self, "_handle", 0) and os.getpid() == self._process:
            lib.group_free(self._handle)
            self._pending.clear()  # with the group they are over

    # ---- What torch asks of a group ----

    def getBackendName(self) -> str:  # noqa: N802 (torch's)
        return "bimetal"

    @property
    def group_name(self) -> str:
        """torch's own asks the back ends of a group, and this group has none: destroy_process_group(group) wants it."""
        return self._name

    def _get_backend(self, device: torch.device) -> LibraryProcessGroup:
        del device
        return self

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Calls are numbered from 0 on all ranks: there is nothing to agree on."""

    def _start_coalescing(self, device: torch.device) -> None:
        """Calls between this and the end go out one by one; torch's manager waits for all of them."""
        del device
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> LibraryWork:
        del device
        works, self._coalescing = self._coalescing or [], None
        return SeveralWorks(works)

    def split_group(self, ranks: Sequence[int], timeout: datetime.timedelta | None = None, opts: Any = None,
                    group_name: str | None = None, group_desc: str | None = None,
                    device_types: Any = None) -> LibraryProcessGroup | None:
        """A group of some of these ranks; collective among them. None on the others."""
        del opts, group_desc, device_types
        place = self._splitting.place(ranks, timeout or self._timeout, group_name)
        return self._meet(place) if place else None

    def abort(self) -> None:
        """Ends the calls in flight, here and on the other ranks."""
        if self._of_callbacks is not None:
            self._of_callbacks.abort()
        check(lib.group_abort(self._handle, b"the process group was aborted"))

    def shutdown(self) -> None:
        """Orderly end: waits for calls in flight."""
        self.close(30.0)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout
        self._within = milliseconds_of(timeout)

    # ---- What bimetal asks of it ----

    def handle(self) -> int:
        return self._handle

    def for_torch_library(self) -> _C.ProcessGroup:
        """As the calls of bimetal._C take it."""
        return _C.ProcessGroup(self._handle, self._timeout.total_seconds())

    def close(self, seconds: float) -> None:
        if os.getpid() != self._process:
            return
        running.settle(seconds)
        if self._of_callbacks is not None:
            self._of_callbacks.close(seconds)
        lib.group_close(self._handle, int(seconds * 1000))

    def flight_recorder(self) -> str:
        return text_of(lib.group_flight_recorder, self._handle)

    def bytes_sent(self) -> int:
        return lib.group_bytes_sent(self._handle)

    def transport(self) -> str:
        return lib.group_transport(self._handle).decode()

    # ---- Calls that compute ----

    def allreduce(self, tensors: Any, opts: Any = None) -> LibraryWork:
        tensor = only(tensors)
        if self._waits_at_once(opts) and not profiler._is_profiler_enabled and not (running.ident and running.here()):
            kind, reduction = plain_type_of(tensor), reduction_of(operation_of(opts), tensor.dtype)
            if kind and reduction.plain:
                return self._all_reduce_plainly(tensor, kind, reduction.number, opts)
        host = HostTensors()
        return self._start("all_reduce", host, [tensor], [self._reducing(host, tensor, opts)], opts)

    def _all_reduce_plainly(self, tensor: torch.Tensor, kind: int, number: int, opts: Any) -> LibraryWork:
        """As _begin() does it, if a short call takes less time than to prepare the others' inputs."""
        if self._pending:
            look_at(self._pending)
        place, work = c_void_p(), None
        try:
            status = lib.all_reduce(self._handle, tensor.data_ptr(), tensor.numel(), kind, number,
                                    milliseconds_of(opts) or self._within, byref(place))
            if status:
                raise failure(status)
            if place.value:
                work = LibraryWork(HostTensors([tensor]), [tensor], self._pending, [place.value])
                work.begun()
        except BaseException as problem:
            begun = [place.value] if place.value else []
            (work or LibraryWork(HostTensors([tensor]), [tensor], self._pending, begun)).abandon(problem)
            raise
        self._sequence += 1
        return work or OVER

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> LibraryWork:
        tensors, host = tensors_of(tensors), HostTensors()
        return self._start("all_reduce_coalesced", host, tensors, [self._reducing(host, tensor, opts) for tensor in tensors], opts)

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> LibraryWork:
        return self.allreduce(tensors, opts)

    def _reducing(self, host: HostTensors, tensor: torch.Tensor, opts: Any) -> _Begin:
        if tensor.layout is torch.sparse_coo:
            sparse = SparseReduction(tensor, operation_of(opts), self._size)
            host.afterwards(sparse.finish)
            return sparse.begin
        reduction = reduction_of(operation_of(opts), tensor.dtype)
        if reduction.bits is not None:
            return BitwiseReduction(host, tensor, reduction.bits, self._rank, self._size).begin
        data = host.lend(tensor, Use.UPDATE)
        reduction.prepare(data)
        address, count, kind = memory_of(data)
        number = reduction.number
        return lambda group, within, work: lib.all_reduce(group, address, count, kind, number, within, work)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> LibraryWork:
        tensor, root, host = only(tensors), root_of(opts), HostTensors()
        reduction = reduction_of(operation_of(opts if not isinstance(opts, int) else op), tensor.dtype)
        if reduction.bits is not None:
            by_bits = BitwiseReduction(host, tensor, reduction.bits, self._rank, self._size, root)
            return self._start("reduce", host, [tensor], [by_bits.begin], opts)
        data = host.lend(tensor, Use.UPDATE if self._rank == root else Use.SCRATCH)
        reduction.prepare(data)
        address, count, kind = memory_of(data)
        return self._start("reduce", host, [tensor], [lambda group, within, work: lib.reduce(
            group, address, count, kind, reduction.number, root, within, work)], opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        output, parts, host = only(outputs), first(inputs), HostTensors()
        self._check_list(parts, "inputs")
        reduction = reduction_of(operation_of(opts), output.dtype)
        whole = host.join(parts)
        reduction.prepare(whole)
        own = host.lend(output, Use.WRITE)
        counts = None
        if not are_alike(parts):
            check_own(parts[self._rank], output, "this rank's input")
            counts = numbers(counts_of(parts, whole))
        return self._start("reduce_scatter", host, [output], [self._scattering(whole, own, counts, reduction)], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        host, calls = HostTensors(), []
        for output, given in zip(outputs, inputs, strict=True):
            reduction = reduction_of(operation_of(opts), output.dtype)
            whole = host.lend(given, Use.SCRATCH)
            reduction.prepare(whole)
            own = host.lend(output, Use.WRITE)
            self._check_whole(whole, own)
            calls.append(self._scattering(whole, own, None, reduction))
        return self._start("reduce_scatter_tensor", host, list(outputs), calls, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> LibraryWork:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @staticmethod
    def _scattering(whole: torch.Tensor, own: torch.Tensor, counts: Any, reduction: Reduction) -> _Begin:
        if reduction.bits is not None:
            raise error("reduce_scatter has no operations of bits; all_reduce and reduce do", "unsupported")
        address, count, kind = memory_of(own)
        source, number = whole.data_ptr(), reduction.number
        return lambda group, within, work: lib.reduce_scatter(group, source, address, count, counts, kind, number,
                                                              within, work)

    # ---- Calls that move values ----

    def broadcast(self, tensors: Any, opts: Any = None) -> LibraryWork:
        tensor, root, host = only(tensors), root_of(opts), HostTensors()
        address, count, kind = memory_of(host.lend(tensor, Use.READ if self._rank == root else Use.WRITE))
        return self._start("broadcast", host, [tensor], [lambda group, within, work: lib.broadcast(
            group, address, count, kind, root, within, work)], opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        parts, host = first(outputs), HostTensors()
        return self._start("all_gather", host, parts, [self._gathering_lists(host, parts, only(inputs))], opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        host = HostTensors()
        calls = [self._gathering_lists(host, [row[i] for row in outputs], given) for i, given in enumerate(inputs)]
        return self._start("all_gather_coalesced", host, [tensor for row in outputs for tensor in row], calls, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        host, calls = HostTensors(), []
        for output, given in zip(outputs, inputs, strict=True):
            own, all_of_them = host.lend(given, Use.READ), host.lend(output, Use.WRITE)
            self._check_whole(all_of_them, own)
            calls.append(_gathering(own, all_of_them, None))
        return self._start("all_gather_into_tensor", host, list(outputs), calls, opts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> LibraryWork:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _gathering_lists(self, host: HostTensors, parts: list[torch.Tensor], given: torch.Tensor) -> _Begin:
        self._check_list(parts, "outputs")
        own, joined = host.lend(given, Use.READ), host.divide(parts)
        check_own(parts[self._rank], given, "this rank's output")
        return _gathering(own, joined, None if are_alike(parts) else numbers(counts_of(parts, joined)))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        given, root, host = only(inputs), root_of(opts), HostTensors()
        parts = first(outputs) if self._rank == root and outputs else []
        place = None
        if self._rank == root:
            self._check_list(parts, "outputs")
            check_alike_sizes(parts, given)
            place = host.divide(parts).data_ptr()
        address, count, kind = memory_of(host.lend(given, Use.READ))
        return self._start("gather", host, parts, [lambda group, within, work: lib.gather(
            group, address, place, count, kind, root, within, work)], opts)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> LibraryWork:
        root, host = root_of(opts), HostTensors()
        address, count, kind = memory_of(host.lend(input, Use.READ))
        results, place = [], None
        if self._rank == root:
            self._check_whole(output, input)
            results, place = [output], host.lend(output, Use.WRITE).data_ptr()
        return self._start("gather_single", host, results, [lambda group, within, work: lib.gather(
            group, address, place, count, kind, root, within, work)], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        output, root, host = only(outputs), root_of(opts), HostTensors()
        place = None
        if self._rank == root:
            parts = first(inputs) if inputs else []
            self._check_list(parts, "inputs")
            check_alike_sizes(parts, output)
            place = host.join(parts).data_ptr()
        address, count, kind = memory_of(host.lend(output, Use.WRITE))
        return self._start("scatter", host, [output], [lambda group, within, work: lib.scatter(
            group, place, address, count, kind, root, within, work)], opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> LibraryWork:
        outputs, inputs, host = list(outputs), list(inputs), HostTensors()
        self._check_list(inputs, "inputs")
        self._check_list(outputs, "outputs")
        source, target = host.join(inputs), host.divide(outputs)
        return self._start("all_to_all", host, outputs, [_exchanging(source, counts_of(inputs, source), target,
                                                       counts_of(outputs, target))], opts)

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_split_sizes: Sequence[int] = (),
                      input_split_sizes: Sequence[int] = (), opts: Any = None) -> LibraryWork:
        host = HostTensors()
        source, target = host.lend(input, Use.READ), host.lend(output, Use.WRITE)
        to = self._rows(source, input_split_sizes, "the input")
        from_ = self._rows(target, output_split_sizes, "the output")
        return self._start("all_to_all_single", host, [output], [_exchanging(source, to, target, from_)], opts)

    all_to_all_single = alltoall_base

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> LibraryWork:  # noqa: N803 (torch's)
        host = HostTensors()
        address, count, kind = memory_of(host.lend(only(tensors), Use.READ))
        return self._start("send", host, [], [lambda group, within, work: lib.send(
            group, address, count, kind, dstRank, tag, within, work)], None, message=True)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> LibraryWork:  # noqa: N803 (torch's)
        tensor, host = only(tensors), HostTensors()
        address, count, kind = memory_of(host.lend(tensor, Use.WRITE))
        return self._start("recv", host, [tensor], [lambda group, within, work: lib.receive(
            group, address, count, kind, srcRank, tag, within, work)], None, message=True)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> LibraryWork:
        tensor, host = only(tensors), HostTensors()
        address, count, kind = memory_of(host.lend(tensor, Use.WRITE))
        return self._start("recvAnySource", host, [tensor], [lambda group, within, work: lib.receive_from_anybody(
            group, address, count, kind, tag, within, work)], None, message=True)

    def barrier(self, opts: Any = None) -> LibraryWork:
        return self._start("barrier", HostTensors(), [], [lib.barrier], opts)

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Through the store, so that a rank that does not come breaks nothing. Names all that do not."""
        del wait_all_ranks
        self._barriers += 1
        given = timeout is not None and timeout >= datetime.timedelta(0)
        monitored_barrier(self._store, self._rank, self.members or list(range(self._size)), self._barriers,
                          (timeout if given else self._timeout).total_seconds())

    # ---- How a call begins ----

    def _start(self, name: str, host: HostTensors, outputs: list[torch.Tensor], calls: Sequence[_Begin], opts: Any,
               message: bool = False) -> LibraryWork:
        if not profiler._is_profiler_enabled:
            return self._begin(host, outputs, calls, opts, message)
        event = torch.autograd._record_function_with_args_enter(f"bimetal:{name}", *(host.inputs or outputs))
        try:
            work = self._begin(host, outputs, calls, opts, message)
        except BaseException:
            torch.autograd._record_function_with_args_exit(event)
            raise
        over: torch.futures.Future[None] = torch.futures.Future()
        torch.ops.profiler._call_end_callbacks_on_jit_fut(event, over)
        work.when_over(lambda: over.set_result(None))  # while the profiler is still there: the waiting thread may end
                                                       # it then
        return work

    def _begin(self, host: HostTensors, outputs: list[torch.Tensor], calls: Sequence[_Begin], opts: Any, message: bool) -> LibraryWork:
        if running.here() and not message:
            work = self._for_callbacks()._begin_here(host, outputs, calls, opts, message)
            if self._coalescing is not None:
                self._coalescing.append(work)
            return work
        return self._begin_here(host, outputs, calls, opts, message)

    def _for_callbacks(self) -> LibraryProcessGroup:
        """The same ranks with an order of their own: that of the calls in callbacks. Collective in those at first."""
        if self._of_callbacks is None:
            self._of_callbacks = self.split_group(range(self._size), self._timeout, f"{self._name}:callbacks")
            assert self._of_callbacks is not None
        return self._of_callbacks

    def _begin_here(self, host: HostTensors, outputs: list[torch.Tensor], calls: Sequence[_Begin], opts: Any, message: bool) -> LibraryWork:
        within = milliseconds_of(opts) or self._within  # the core's own is that of the whole world
        if self._pending:
            look_at(self._pending)
        begun: list[int] = []
        work = place = None
        try:
            for call in calls:
                place = c_void_p()
                status = call(self._handle, within, byref(place))
                if status:
                    raise failure(status)
                if place.value:  # else it is done
                    begun.append(place.value)
            if not begun and self._waits_at_once(opts):
                host.hand_back()
                work = OVER
            else:
                work = LibraryWork(host, outputs, self._pending, begun)
                work.is_message = message
                work.begun()
        except BaseException as problem:  # a signal's, too, which may come before the core's work is among them
            if place is not None and place.value and place.value not in begun:
                begun.append(place.value)
            if work is not OVER:
                (work or LibraryWork(host, outputs, self._pending, begun)).abandon(problem)
            raise
        if not message:
            self._sequence += 1
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _waits_at_once(self, opts: Any) -> bool:
        """Whether the caller will do nothing with the work but wait for it, as torch has said since 2.7."""
        return self._coalescing is None and getattr(opts, "asyncOp", True) is False

    def _check_list(self, parts: Tensors, what: str) -> None:
        if len(parts) != self._size:
            raise error(f"{len(parts)} {what} were given, but the group has {self._size} ranks, each of which needs one",
                        "invalid_argument")

    def _check_whole(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        if whole.numel() != part.numel() * self._size or whole.dtype != part.dtype:
            raise error(f"a tensor of {whole.numel()} values of {whole.dtype} does not hold one part of {part.numel()} "
                        f"values of {part.dtype} for each of {self._size} ranks", "invalid_argument")

    def _rows(self, host: torch.Tensor, rows: Sequence[int], what: str) -> list[int]:
        """Elements of the core for each rank, from rows for each rank; none: equal parts."""
        whole = memory_of(host)[1]
        have = host.shape[0] if host.dim() else 1
        if not rows:
            if host.dim() and have % self._size:
                raise error(f"{what} has {have} rows, which {self._size} ranks cannot share equally",
                            "invalid_argument")
            return [whole // self._size] * self._size
        if len(rows) != self._size or sum(rows) != have or min(rows) < 0:
            raise error(f"{len(rows)} splits for {what} of {have} rows do not fit {self._size} ranks: one for each is "
                        f"needed, and together all rows", "invalid_argument")
        per_row = whole // have if have else 0
        return [count * per_row for count in rows]


def _gathering(own: torch.Tensor, joined: torch.Tensor, counts: Any) -> _Begin:
    address, count, kind = memory_of(own)
    place = joined.data_ptr()
    return lambda group, within, work: lib.all_gather(group, address, count, place, counts, kind, within, work)


def _exchanging(source: torch.Tensor, to: list[int], target: torch.Tensor, from_: list[int]) -> _Begin:
    address, _, kind = memory_of(source)
    place, sends, receives = target.data_ptr(), numbers(to), numbers(from_)
    return lambda group, within, work: lib.all_to_all(group, address, sends, place, receives, kind, within, work)
