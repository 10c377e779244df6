"""Process groups where it was hard: torch's short forms of calls, DDP that joins, futures in order, other back ends beside it."""

import datetime
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

import ranks
import torch
import torch.distributed as dist
from test_collectives import check_bits, check_messages_from_anybody, check_sparse
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bimetal
from bimetal.library import LibraryProcessGroup
from bimetal.library.tensors import HostTensors



def short_forms():
    """As DDP's join and other code of torch's calls a group: tensors for lists, numbers for options."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    data = torch.full((3,), float(rank))
    group.allreduce(data).wait()
    assert data.tolist() == [size * (size - 1) / 2] * 3, data
    data = torch.full((3,), float(rank))
    group.allreduce([data], dist.ReduceOp.MAX).wait()
    assert data[0] == size - 1, data
    group.broadcast(data.fill_(rank), 1).wait()
    assert data[0] == 1, data
    everyone = [torch.empty(2) for _ in range(size)]
    group.allgather(everyone, torch.full((2,), float(rank))).wait()
    assert [part[0].item() for part in everyone] == list(range(size)), everyone
    own = torch.empty(2)
    group.reduce_scatter(own, [torch.full((2,), float(r)) for r in range(size)]).wait()
    assert own[0] == rank * size, own
    column = torch.zeros(6, 2)[:, 1]
    ranks.raises(bimetal.Error, lambda: dist.broadcast(column, 7), "7")
    ranks.raises(Exception, lambda: group.recv([column], 9, 0))
    dist.barrier()
    assert column.tolist() == [0.0] * 6, f"a call that did not begin wrote {column}"
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    del work  # the core still uses its memory
    torch.randn(100_000)
    dist.barrier()
    assert bimetal.transport() == "shm", bimetal.transport()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, both):
        return self.first(x).sum() + (self.second(x).sum() if both else 0)


def join_with_unused_parameters():
    """Ranks of unequal numbers of steps, and parameters that some steps leave out."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.full((2, 4), 1.0 + rank), both=(step + rank) % 2 == 0).backward()
            optimizer.step()
    learnt = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyone = [torch.empty_like(learnt) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, learnt)
    assert all(torch.equal(other, learnt) for other in everyone), everyone


def beside_others():
    """Each of several back ends has its devices' tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for asked, kind in (("cpu:bimetal,cuda:gloo", LibraryProcessGroup), ("cuda:bimetal,cpu:gloo", dist.ProcessGroupGloo)):
        dist.init_process_group(asked)
        for group in (dist.group.WORLD, dist.new_group(list(range(size)))):
            assert isinstance(group._get_backend(torch.device("cpu")), kind)
            assert isinstance(group._get_backend(torch.device("cuda")), LibraryProcessGroup) == (kind is dist.ProcessGroupGloo)
            total, parts = torch.full((3,), float(rank)), [torch.empty(1) for _ in range(size)]
            dist.all_reduce(total, group=group)
            dist.all_gather(parts, total[:1] + rank, group=group)
            dist.barrier(group)
            assert [part.item() for part in parts] == [size * (size - 1) / 2 + other for other in range(size)], parts
        if kind is dist.ProcessGroupGloo:
            ranks.refused(lambda: bimetal.transport(device="cpu"), "invalid_argument", "not bimetal")
        dist.destroy_process_group()


def no_time_at_all():
    """A timeout of 0 is what a caller may have left, not the group's own."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        now = datetime.timedelta(0)
        ranks.refused(lambda: bimetal.monitored_barrier(timeout=now), "timeout", "1")
        options = dist.AllreduceOptions()
        options.timeout = now
        ranks.refused(lambda: dist.group.WORLD.allreduce([torch.ones(2)], options).wait(), "timeout")
        store.set("tried", "")
    else:
        store.wait(["tried"])  # it never comes to these calls
    return "done"


def futures_of_calls_that_are_over():
    """Are done from the start: without a thread, and without leaving anything for the collection of garbage."""
    for _ in range(2):
        dist.all_reduce(torch.ones(1))  # torch loads its compiler in the first call, and leaves garbage
    gc.collect()
    gc.disable()
    for number in range(5):
        if dist.get_rank() == 0:
            time.sleep(0.02)  # the other's call is not over when it begins
        work = dist.all_reduce(torch.full((8,), 1.0), async_op=True)
        dist.barrier()
        future = work.get_future()
        assert future.done(), number
        assert future.wait()[0][0] == dist.get_world_size()
        left = weakref.ref(work), weakref.ref(future)
        del work, future
        assert [thing() for thing in left] == [None, None], number
    gc.enable()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("bimetal")]


def a_call_that_is_interrupted_keeps_its_memory():
    """Ctrl-C after the core has begun: what it still writes into must stay."""
    rank, group, store = dist.get_rank(), dist.group.WORLD, dist.distributed_c10d._get_default_store()

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)

    data = torch.ones(100_000)
    if rank == 0:
        host, left = HostTensors(), weakref.ref(data)
        calls = [group._reducing(host, data, None), interrupted]
        ranks.raises(KeyboardInterrupt, lambda: group._start("all_reduce", host, [data], calls, None))
        del host, calls, data
        gc.collect()
        assert left() is not None
        store.set("interrupted", "")
    else:
        store.wait(["interrupted"])
        dist.all_reduce(data)
    dist.barrier()
    return "done"


def several_that_cannot_be_handed_back():
    """Works that were made as one raise what one of them does."""
    group, cpu, store = dist.group.WORLD, torch.device("cpu"), dist.distributed_c10d._get_default_store()
    column, other = torch.zeros(6, 2)[:, 1], torch.ones(3)
    if dist.get_rank() == 1:
        store.wait(["begun"])
    group._start_coalescing(cpu)
    for tensor in (column, other):
        group.allreduce(tensor)
    several = group._end_coalescing(cpu)
    if dist.get_rank() == 0:
        column.data = torch.zeros(4)  # which the result does not fit
        store.set("begun", "")
        ranks.raises(RuntimeError, several.wait, "size")
    else:
        several.wait()
    assert other[0] == 2
    return "done"


CHECKS = [short_forms, join_with_unused_parameters, beside_others]


def all_checks():
    for check in CHECKS:
        check()
        print(check.__name__, "passed", flush=True)
    return len(CHECKS)


def bits_sparse_and_from_anybody():
    check_bits()
    check_sparse()
    check_messages_from_anybody()
    return "done"


def compiled():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    model = torch.compile(DistributedDataParallel(plain), backend="eager")
    x = torch.arange(12, dtype=torch.float64).view(3, 4) + dist.get_rank()
    for _ in range(2):
        model(x).square().sum().backward()
    return plain[2].bias.grad.tolist()


class Library(unittest.TestCase):
    def test_a_compiled_ddp(self):
        first, second = ranks.on_ranks(2, compiled)
        self.assertEqual(first, second)

    def test_bits_sparse_and_from_anybody(self):
        self.assertEqual(ranks.on_ranks(3, bits_sparse_and_from_anybody), ["done"] * 3)

    def test_futures_of_calls_that_are_over(self):
        self.assertEqual(ranks.on_ranks(2, futures_of_calls_that_are_over), [[], []])

    def test_process_groups(self):
        self.assertEqual(ranks.on_ranks(3, all_checks), [len(CHECKS)] * 3)

    def test_calls_that_end_badly(self):
        for body in (a_call_that_is_interrupted_keeps_its_memory, several_that_cannot_be_handed_back):
            with self.subTest(body.__name__):
                self.assertEqual(ranks.on_ranks(2, body), ["done"] * 2)

    def test_no_time_at_all_is_not_the_groups_timeout(self):
        self.assertEqual(ranks.on_ranks(2, no_time_at_all), ["done"] * 2)

    def said(self, program):
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120).stdout

    @unittest.skipUnless(os.environ.get("BIMETAL"), "which program? BIMETAL=PATH")
    def test_a_workers_keys_are_the_programs(self):
        """BIMETAL_WORKER and --worker are written alike, also where there is no program to read them."""
        asked = subprocess.run([os.environ["BIMETAL"], "join", "127.0.0.1:1", "--worker", "cpu:cores=2"], capture_output=True,
                               text=True, timeout=60)
        said = (asked.stderr, str(ranks.raises(bimetal.Error, lambda: bimetal.device("cpu:cores=2"), "cores")))
        keys = [re.search(r"keys: ([a-z_, ]+)\)", text)[1] for text in said]
        self.assertEqual(keys[0], keys[1], said)

    def test_what_needs_the_torch_library_says_so(self):
        calls = ("pipeline.stages(module)", "tensor.parts(module)", "zero.shard(module)",
                 "monitor(bimetal.BalancedBatchSampler(10, 4), loss=lambda: 1.0)")
        said = self.said("import torch; torch.__version__ = '2.4.1'\nimport bimetal\nmodule = torch.nn.Linear(2, 2)\n" + "".join(
            f"try: bimetal.{call}\nexcept ImportError as error: print(error)\n" for call in calls))
        for call in calls:
            self.assertRegex(said, rf"bimetal.{call.partition('(')[0]}\(\)[a-z0-9 ]* needs bimetal's torch library: .* torch 2.4.1 is installed")

    def test_a_torch_that_is_too_old_or_newer_than_this_package(self):
        said = self.said("import torch; torch.__version__ = '2.3.1'\ntry: import bimetal\nexcept ImportError as error: print(error)")
        self.assertIn("needs torch 2.4 or later, but torch 2.3.1 is installed", said)
        for version, told in (("2.99.0+cpu", True), ("2.13.0", False)):
            said = self.said(f"import torch; torch.__version__ = {version!r}; from bimetal.command import doctor, findings; doctor.local(findings.Findings(False))")
            self.assertEqual("the last that this bimetal was tested with" in said, told, said)


if __name__ == "__main__":
    ranks.main(globals())
