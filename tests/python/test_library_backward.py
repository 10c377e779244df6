"""DDP: buckets' futures that are completed where a backward ends."""

import copy
import os
import signal
import threading
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from ranks import raises, refused
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import bimetal

SOON = 30.0


class Layers(nn.Module):
    """Two buckets from the second step on, of which the first sets out before `between` is called in the backward."""

    def __init__(self, between=None, again=False):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(20, 300), nn.Linear(300, 300), nn.Linear(300, 5)
        self.between, self.again = between, again

    def forward(self, x):
        hidden = self.first(x).tanh()
        if self.between is not None:
            hidden.register_hook(lambda gradient: self.between())
        hidden = checkpoint(self.second, hidden, use_reentrant=True) if self.again else self.second(hidden)
        return self.third(hidden.tanh())


def model_of(between=None, again=False, **options):
    torch.manual_seed(3)
    return DistributedDataParallel(Layers(between, again).double(), bucket_cap_mb=0.1, **options)


def loss_of(model, step, rows):
    dice = torch.Generator().manual_seed(100 + step)
    x, y = (torch.randn(8, width, dtype=torch.float64, generator=dice)[rows] for width in (20, 5))
    return nn.functional.mse_loss(model(x), y)


def threads_of_futures():
    return [thread.name for thread in threading.enumerate() if thread.name == "bimetal-futures"]


def train(kind):
    """Each rank is late at another bucket. Float64 to 1e-12 beside one process that has all rows."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def between():
        if rank == 0:
            time.sleep(0.02)
    model = model_of(between, again=kind == "reentrant", static_graph=kind == "static graph")
    alone = copy.deepcopy(model.module)
    alone.between = None
    optimizers = [torch.optim.SGD(of.parameters(), lr=0.1) for of in (model, alone)]
    rows = slice(rank * 8 // size, (rank + 1) * 8 // size)
    for step in range(5):
        time.sleep(0.02 * (rank == 1))
        loss_of(model, step, rows).backward()
        loss_of(alone, step, slice(None)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for found, expected in zip(model.module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not dist.group.WORLD._pending, dist.group.WORLD._pending
    return threads_of_futures()


def a_backward_that_fails():
    """The future that was to be completed at its end is completed all the same."""
    store, group, kept = dist.distributed_c10d._get_default_store(), dist.group.WORLD, []

    def fail():
        kept.extend(group._pending.values())
        raise ValueError("this hook does not like it")
    model = model_of()
    loss_of(model, 0, slice(None)).backward()
    model.module.between = fail
    dist.barrier()
    if dist.get_rank() == 0:
        raises(ValueError, loss_of(model, 0, slice(None)).backward, "does not like it")
        work, = kept
        assert not work.is_completed()
        store.set("failed", "")
    else:
        store.wait(["failed"])  # until then its part of the bucket is missing
        raises(ValueError, loss_of(model, 0, slice(None)).backward, "does not like it")
    dist.barrier()
    until = time.monotonic() + SOON
    # Not the future's own done(), which looks after its work.
    while dist.get_rank() == 0 and not torch.futures.Future.done(work._future):
        assert time.monotonic() < until
        time.sleep(0.01)
    return "done"


def a_backward_that_is_interrupted():
    """Ctrl-C ends the wait for a rank that does not come."""
    store, model = dist.distributed_c10d._get_default_store(), model_of()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    model.module.between = timer.start if dist.get_rank() == 0 else None
    loss = loss_of(model, 0, slice(None))
    if dist.get_rank() == 0:
        raises(KeyboardInterrupt, loss.backward)
        timer.join()
        store.set("interrupted", "")
    else:
        store.wait(["interrupted"])
        loss.backward()
    dist.barrier()
    return "done"


def a_backward_without_the_other_rank():
    """The thread that waits for the buckets says so, with everything that Python knows of the wait."""
    store, model = dist.distributed_c10d._get_default_store(), model_of()
    loss = loss_of(model, 0, slice(None))
    store.add("ready", 1)
    if dist.get_rank() == 1:
        while store.add("ready", 0) < 2:
            time.sleep(0.01)
        dist.group.WORLD.abort()
    refused(loss.backward, "aborted", "the process group was aborted")
    return "done"


def a_failure_in_a_future():
    """One of a device's tensors looks for them when it is completed, before the reducer does. No device is needed."""
    from torch._jit_internal import _extract_tensors

    from bimetal.library.callbacks import Failed
    problem = bimetal.Error("lost", "peer_lost", 1)
    of_device = Failed(problem, True)
    assert _extract_tensors(of_device) == []
    for failed in (of_device, Failed(problem, False)):
        assert raises(bimetal.Error, lambda failed=failed: _extract_tensors(failed), "lost") is problem
        assert raises(bimetal.Error, failed.tell, "lost") is problem
    return "done"


class Backward(unittest.TestCase):
    def test_failures_are_told_to_whom_they_concern(self):
        self.assertEqual(ranks.on_ranks(1, a_failure_in_a_future), ["done"])

    def test_the_reducers_futures_need_no_thread(self):
        self.assertEqual(ranks.on_ranks(2, train, "plain"), [[], []])

    def test_where_they_cannot_wait_for_the_end(self):
        for kind in ("static graph", "reentrant"):
            with self.subTest(kind):
                ranks.on_ranks(2, train, kind)

    def test_backwards_that_do_not_come_to_their_end(self):
        for body in (a_backward_that_fails, a_backward_that_is_interrupted, a_backward_without_the_other_rank):
            with self.subTest(body.__name__):
                self.assertEqual(ranks.on_ranks(2, body), ["done"] * 2)


if __name__ == "__main__":
    ranks.main(globals())
