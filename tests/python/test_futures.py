"""Futures whose callbacks make calls of their own and wait for them, as torch's PowerSGD hook does."""

import datetime
import random
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from ranks import raises, refused
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import bimetal

# Nothing here is to last that long: a deadlock is found out by it.
SOON = datetime.timedelta(seconds=60)


def sum_of(value, size):
    """The all_reduce of value + rank."""
    return value * size + size * (size - 1) // 2


def chains_of_callbacks():
    """Per round, some chains of three calls each, two of them made by callbacks. Sums tell whose calls have met."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dice = random.Random(rank)  # every rank is late at other places

    def pause():
        if dice.random() < 0.3:
            time.sleep(dice.random() * 0.004)

    def chain(number, length):
        def reduced(value):
            pause()
            return dist.all_reduce(torch.full((length,), float(value + rank)), async_op=True)

        def check(value, step):
            assert value[0] == value[-1] == sum_of(number + step, size), (number, step, value[0], value[-1])

        def second(future):
            check(future.value()[0], 0)
            return reduced(number + 1).get_future().wait()[0]

        def third(future):
            check(future.value(), 1)
            work = reduced(number + 2)
            work.wait()
            return work.result()[0]

        def end(future):
            check(future.value(), 2)
            return number
        return reduced(number).get_future().then(second).then(third).then(end)

    for turn in range(40):
        numbers = [1000 * turn + 10 * place for place in range(4)]
        futures = []
        for place, number in enumerate(numbers):
            futures.append(chain(number, (5, 200_000, 3000, 70_000)[place]))
            pause()
        after = torch.full((7,), float(rank))
        dist.all_reduce(after)  # made after all of them
        assert after[0] == sum_of(0, size)
        assert [future.wait() for future in futures] == numbers


def ways_to_wait():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum_of(0, size)

    def reduced():
        return dist.all_reduce(torch.full((100_000,), float(rank)), async_op=True)

    def nested(future):
        inner = reduced().get_future().then(lambda f: (reduced().wait(), f.value()[0][0].item())[1])
        return inner.wait()
    assert reduced().get_future().then(nested).wait() == total
    # One that nobody waits for inside the callback comes before what is called afterwards, too.
    seen = []
    first = reduced().get_future().then(
        lambda f: reduced().get_future().then(lambda g: seen.append(g.value()[0][0].item())))
    dist.barrier()
    assert first.wait().wait() is None and seen == [total]
    # The work, its future and what else it knows agree.
    work = reduced()
    future = work.get_future()
    work.wait()
    assert future.done() and future.value()[0][0] == total and work.is_completed()
    assert reduced().get_future().wait()[0][0] == total
    # A future of another call, made before this one's was asked for, so that it waits for no callback.
    early, late = reduced(), reduced()
    assert early.get_future().then(lambda f: late.wait()).wait() is True
    # Several works as one.
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        parts = [torch.full((30,), float(rank + place)) for place in range(3)]
        for part in parts:
            dist.all_reduce(part)
    manager.wait()
    assert [part[0].item() for part in parts] == [sum_of(place, size) for place in range(3)]


def attaching_waits_for_nobody():
    """The others call when the first rank has attached all of its callbacks, and no earlier."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()

    def chain():
        future = dist.all_reduce(torch.full((1000,), float(rank)), async_op=True).get_future()
        future = future.then(lambda f: dist.all_reduce(f.value()[0] + 1, async_op=True).get_future().wait()[0])
        return future.then(lambda f: f.value()[0].item())
    if rank > 0:
        store.wait(["attached"], SOON)
    futures = [chain() for _ in range(3)]
    if rank == 0:
        assert not any(future.done() for future in futures)
        store.set("attached", "yes")
    assert [future.wait() for future in futures] == [(sum_of(0, size) + 1) * size] * 3

    def late(future):
        return later.wait()
    first, second = (dist.all_reduce(torch.ones(3), async_op=True).get_future() for _ in range(2))
    gate = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda f: store.wait([f"go {rank}"], SOON))
    waits = first.then(late)
    later = second.then(lambda f: 1)
    store.set(f"go {rank}", "yes")
    gate.wait()
    raises(RuntimeError, waits.wait, "attached after it")
    assert later.wait() == 1


def callbacks_of_messages():
    """A message's callbacks hold nothing up: its sender may make other calls first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.zeros(3)
    if rank == 0:
        future = dist.irecv(got, src=1).get_future()
        dist.barrier()
        future.then(lambda f: got.mul_(2)).wait()
        assert got.tolist() == [2.0] * 3
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(3), dst=0)
    dist.all_reduce(torch.ones(1))
    return size


def errors_in_callbacks():
    def fails(future):
        raise ValueError("this callback does not like it")
    future = dist.all_reduce(torch.ones(100_000), async_op=True).get_future().then(fails)
    raises(RuntimeError, future.wait, "does not like it")
    later = future.then(lambda f: f.value())
    raises(RuntimeError, later.wait, "does not like it")
    dist.all_reduce(torch.ones(10))  # nothing is broken by it

    def unlike(future):
        return dist.all_reduce(torch.ones(1000 + dist.get_rank()), async_op=True).get_future().wait()
    future = dist.all_reduce(torch.ones(100_000), async_op=True).get_future().then(unlike)
    raises(RuntimeError, future.wait, "1000 float32", "1001 float32", "[call_mismatch")
    # The calls of callbacks have failed for good, those of the program have not.
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda f: dist.barrier())
    raises(RuntimeError, future.wait, "1000 float32", "[call_mismatch")
    dist.barrier()


def end_after_a_callback_alone(way):
    """A callback makes a call to which nobody else comes: it is told so in time, and the group ends as others do."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    work = dist.all_reduce(torch.ones(4_000_000), group=group, async_op=True)
    outcome = []

    def wait_alone(future):
        if rank == 0:
            raises(bimetal.Error, lambda: dist.all_reduce(torch.ones(3), group=group))
            outcome.append("told")
    first = work.get_future().then(wait_alone)
    work.wait()
    if way == "abort":
        group._get_backend(torch.device("cpu")).abort()
    elif way == "destroy":
        dist.destroy_process_group(group)
    if way != "leave":
        first.wait()
        assert rank != 0 or outcome == ["told"], outcome
    return "ended"


def model_of_several_buckets():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 32), nn.Tanh(),
                         nn.Linear(32, 4))


def train_with_power_sgd(kind, in_turn):
    """Parameters after some steps with the hook, the largest number of buckets, and how often it compressed."""
    model = DistributedDataParallel(model_of_several_buckets(), bucket_cap_mb=0.004)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=3, warm_start=True, use_error_feedback=True,
        min_compression_rate=1.5, random_seed=11, batch_tensors_with_same_shape=kind == "same shapes")
    hook = powerSGD_hook.powerSGD_hook
    if kind == "fp16":
        hook = default_hooks.fp16_compress_wrapper(hook)
    buckets = []

    def counted(state, bucket):
        buckets.append(bucket.index())
        future = hook(state, bucket)
        if in_turn:
            future.wait()
        return future
    model.register_comm_hook(state, counted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dice = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(15):
        x, y = torch.randn(16, 24, generator=dice), torch.randn(16, 4, generator=dice)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return [flat.tolist(), max(buckets) + 1, state.iter, len(state.q_memory_dict)]


class Futures(unittest.TestCase):
    def test_chains(self):
        ranks.on_ranks(2, chains_of_callbacks)
        ranks.on_ranks(3, chains_of_callbacks, environment={"BIMETAL_TRANSPORT": "tcp"})

    def test_ways_to_wait(self):
        ranks.on_ranks(2, ways_to_wait)
        ranks.on_ranks(1, ways_to_wait)

    def test_attaching(self):
        ranks.on_ranks(3, attaching_waits_for_nobody)

    def test_messages(self):
        ranks.on_ranks(2, callbacks_of_messages)

    def test_errors(self):
        ranks.on_ranks(2, errors_in_callbacks)

    def test_ends(self):
        for way in ("destroy", "abort", "leave"):
            with self.subTest(way):
                environment = {ranks.LEAVE: "1"} if way == "leave" else None
                self.assertEqual(ranks.on_ranks(2, end_after_a_callback_alone, way, timeout=60,
                                                environment=environment), ["ended"] * 2)

    def test_power_sgd(self):
        """Against Gloo, one bucket after the other: several at once may meet wrongly there."""
        for kind, size, tolerance in (("plain", 3, 1e-4), ("same shapes", 2, 1e-4), ("fp16", 2, 2e-3)):
            with self.subTest(kind):
                expected = ranks.on_ranks(size, train_with_power_sgd, kind, True, backend="gloo")
                found = ranks.on_ranks(size, train_with_power_sgd, kind, False)
                for (parameters, buckets, steps, compressed), (other, *_) in zip(found, expected, strict=True):
                    self.assertGreater(buckets, 2)
                    self.assertEqual(steps, 15)
                    self.assertGreater(compressed, 2)
                    torch.testing.assert_close(torch.tensor(parameters), torch.tensor(other), rtol=tolerance,
                                               atol=tolerance)


if __name__ == "__main__":
    ranks.main(globals())
