"""Checks of test_package.py: every collective on a device's tensors, and the order of what the device has queued."""

import contextlib
import datetime
import importlib.util
import itertools
import threading

import ranks
import torch
import torch.distributed as dist
from test_collectives import sparse_values, values

import bimetal

PATIENCE_S = 10  # of one call
LARGE, ROUNDS = 5_000_000, 50
OPS = {dist.ReduceOp.SUM: lambda all: all.sum(0), dist.ReduceOp.MIN: lambda all: all.amin(0), dist.ReduceOp.MAX: lambda all: all.amax(0),
       dist.ReduceOp.PRODUCT: lambda all: all.prod(0), dist.ReduceOp.AVG: lambda all: all.double().mean(0)}


def collectives(lab):
    types = [torch.float32, torch.float16, torch.bfloat16, torch.int64] + [torch.float64] * lab.double
    for dtype, asynchronous, count in itertools.product(types, (False, True), (1, 1000, 70_001, LARGE)):
        if count < LARGE or (dtype is torch.float32 and asynchronous):
            exchange(lab, dtype, asynchronous, count)
    for numbers in (torch.randn(LARGE // 10, dtype=lab.real, generator=torch.Generator().manual_seed(r)) for r in range(2)):
        got = numbers.to(lab.device) * (lab.rank + 1)
        dist.all_reduce(got, group=lab.group)
        lab.same(got, numbers * 3, "all_reduce of unlike numbers", 1e-12 if lab.double else 1e-6)


def exchange(lab, dtype, asynchronous, count):
    group, rank, size = lab.group, lab.rank, lab.size
    all = [values(count, dtype, r) for r in range(size)]
    mine, wide = all[rank].to(lab.device), torch.stack(all).to(torch.float64 if dtype.is_floating_point else torch.int64)

    def fresh(several=1):
        return torch.full((count * several,), 99, dtype=dtype, device=lab.device)

    def call(function, *arguments, **options):
        work = function(*arguments, **options, group=group, async_op=asynchronous)
        if asynchronous:
            work.wait()

    def check(got, expected, what):
        lab.same(got, expected.to(dtype), f"{what}, {count} of {dtype}, {'async' if asynchronous else 'sync'}")

    for op, reference in OPS.items():
        averages = op == dist.ReduceOp.AVG
        if (averages and not dtype.is_floating_point) or (count == LARGE and not averages and op != dist.ReduceOp.SUM):
            continue
        got = mine.clone()
        call(dist.all_reduce, got, op)
        check(got, reference(wide), f"all_reduce {op}")
        whole, part = torch.cat([mine] * size), fresh()
        call(dist.reduce_scatter_tensor, part, whole, op)
        check(part, reference(wide), f"reduce_scatter_tensor {op}")
        check(whole, all[rank].repeat(size), f"the input of reduce_scatter_tensor {op}")
    for root in range(size):
        got = mine.clone()
        call(dist.reduce, got, root)
        check(got, wide.sum(0) if rank == root else all[rank], f"reduce to {root}")
        got = mine.clone() if rank == root else fresh()
        call(dist.broadcast, got, root)
        check(got, all[root], f"broadcast from {root}")
        lists = [fresh() for _ in all]
        call(dist.gather, mine, lists if rank == root else None, root)
        for r in range(size if rank == root else 0):
            check(lists[r], all[r], f"gather to {root}")
        got = fresh()
        call(dist.scatter, got, [part.to(lab.device) for part in all] if rank == root else None, root)
        check(got, all[rank], f"scatter from {root}")
    part, lists, joined = fresh(), [fresh() for _ in all], fresh(size)
    call(dist.reduce_scatter, part, [mine.clone() for _ in all])
    check(part, wide.sum(0), "reduce_scatter")
    call(dist.all_gather, lists, mine)
    call(dist.all_gather_into_tensor, joined, mine)
    check(torch.cat(lists), torch.cat(all), "all_gather")
    check(joined, torch.cat(all), "all_gather_into_tensor")
    lists, joined = [fresh() for _ in all], fresh(size)
    call(dist.all_to_all, lists, [mine + r for r in range(size)])
    call(dist.all_to_all_single, joined, torch.cat([mine + r for r in range(size)]))
    check(torch.cat(lists), torch.cat([part + rank for part in all]), "all_to_all")
    check(joined, torch.cat([part + rank for part in all]), "all_to_all_single")
    got = fresh()
    messages = [dist.P2POp(dist.isend, mine, (rank + 1) % size, group), dist.P2POp(dist.irecv, got, (rank - 1) % size, group)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    check(got, all[(rank - 1) % size], "batch_isend_irecv")
    for sender in range(size):
        got = mine.clone() if rank == sender else fresh()
        if rank == sender:
            dist.send(got, (rank + 1) % size, group, 7)
        elif rank == (sender + 1) % size:
            dist.recv(got, sender if asynchronous else None, group, 7)
            check(got, all[sender], f"send and recv from {sender}")
    call(dist.barrier)


def shapes(lab):
    """Strided tensors, unequal parts, several calls as one, sparse ones, and objects."""
    rank, size, device, group = lab.rank, lab.size, lab.device, lab.group
    whole = torch.arange(12.0, device=device).reshape(3, 4)
    dist.all_reduce(whole.t(), group=group)
    lab.same(whole, torch.arange(12.0).reshape(3, 4) * size, "all_reduce of a transposed view")
    whole = torch.zeros(size * 3, 2, device=device)
    dist.all_gather_into_tensor(whole[:, 1], torch.full((3,), rank + 1.0, device=device), group=group)
    lab.same(whole[:, 1], torch.arange(1.0, size + 1).repeat_interleave(3), "all_gather into a column")
    lab.same(whole[:, 0], torch.zeros(size * 3), "the column beside it")
    lists = [torch.empty(2, r + 1, device=device) for r in range(size)]
    dist.all_gather(lists, torch.full((2, rank + 1), float(rank), device=device), group=group)
    for r in range(size):
        lab.same(lists[r], torch.full((2, r + 1), float(r)), "all_gather of unlike sizes")
    send, receive = [r + 2 * rank for r in range(size)], [rank + 2 * r for r in range(size)]
    got = torch.empty(sum(receive), 3, device=device)
    dist.all_to_all_single(got, torch.full((sum(send), 3), float(rank), device=device), receive, send, group=group)
    lab.same(got, torch.cat([torch.full((receive[r], 3), float(r)) for r in range(size)]), "all_to_all_single of unlike sizes")
    tensors = [torch.full((n,), rank + 1.0, device=device) for n in (1, 10, 100)]
    with dist._coalescing_manager(group=group, device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    for tensor in tensors:
        lab.same(tensor, torch.full((len(tensor),), size * (size + 1) / 2), "coalesced all_reduce")
    if device.type != "mps":
        sparse = sparse_values(rank).to(device)
        dist.all_reduce(sparse, group=group)
        lab.same(sparse.to_dense(), sum(sparse_values(r).to_dense() for r in range(size)), "sparse all_reduce")
    if importlib.util.find_spec("numpy"):
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank, "on": torch.ones(2, device=device).cpu().tolist()}, group=group)
        assert objects == [{"rank": r, "on": [1.0, 1.0]} for r in range(size)], objects
    bimetal.monitored_barrier(group, datetime.timedelta(seconds=PATIENCE_S))
    assert bimetal.transport(group, device) and bimetal.flight_recorder(group, device)


def errors(lab):
    """Keep their kind and their code on the way through works and futures."""
    work = dist.all_reduce(torch.ones(5 + lab.rank, device=lab.device), group=lab.group, async_op=True)
    for wait in (work.get_future().wait, work.wait):
        error = ranks.raises(dist.DistBackendError, wait, "call_mismatch")
        assert (type(error), error.code) == (bimetal.Error, "call_mismatch"), repr(error)


# ---- The order of what a device has queued ----


def order(lab):
    """Calls of what is still being computed, whose results are used and overwritten at once, on several streams and by two groups."""
    other = dist.new_group(timeout=datetime.timedelta(seconds=PATIENCE_S))
    streams = [torch.cuda.Stream() for _ in range(2)] if lab.device.type == "cuda" else [None]
    kept, used = [], itertools.cycle([None, *streams])
    for turn in range(ROUNDS):
        with in_stream(next(used)):
            kept += order_of_one_turn(lab, turn, other)
    for got, expected, what in kept:
        lab.same(got, torch.full_like(got, expected, device="cpu"), what)


def in_stream(stream):
    return torch.cuda.stream(stream) if stream else contextlib.nullcontext()


def slowly(lab, value, count=100_000):
    """A tensor of `value` that the device is not done with when it is returned."""
    product = torch.eye(512, device=lab.device) if lab.device.type != "cpu" else torch.ones(1, 1)
    if lab.device.type == "cuda":
        torch.cuda._sleep(3_000_000)
    for _ in range(10):
        product = product @ product
    return torch.full((count,), float(value), device=lab.device) * product[0, 0]


def order_of_one_turn(lab, turn, other):
    rank, size, group = lab.rank, lab.size, lab.group
    total, root, kept = size * turn + size * (size - 1) / 2, turn % size, []
    x = slowly(lab, turn + rank)
    work = dist.all_reduce(x, group=group, async_op=True)
    busy = slowly(lab, 1)  # beside it
    work.wait()
    kept.append((x * 2, total * 2, f"turn {turn}: all_reduce"))
    x.zero_()
    strided = slowly(lab, turn + rank).view(1000, 100).t()
    dist.all_reduce(strided, group=group, async_op=True).wait()
    kept.append((strided + busy[0], total + 1, f"turn {turn}: all_reduce of a strided view"))
    joined, mine = slowly(lab, -1, 200_000), slowly(lab, turn + rank, 200_000 // size)  # -1 must not come after the result
    work = dist.all_gather_into_tensor(joined, mine, group=group, async_op=True).wait()
    mine.fill_(-2)
    for r, part in enumerate(joined.chunk(size)):
        kept.append((part.clone(), turn + r, f"turn {turn}: all_gather_into_tensor"))
    joined.zero_()
    x = slowly(lab, turn if rank == root else -1)
    future = dist.broadcast(x, root, group=group, async_op=True).get_future()
    tripled = future.then(lambda done: done.value()[0] * 3).wait() if turn // 2 % 2 else future.wait()[0] * 3
    kept.append((tripled, turn * 3, f"turn {turn}: broadcast and its future"))
    del x
    one, two, three = slowly(lab, turn + rank), slowly(lab, 2 * (turn + rank)), slowly(lab, 1)
    works = [dist.all_reduce(one, group=group, async_op=True), dist.all_reduce(two, group=other, async_op=True),
             dist.all_reduce(three, group=group, async_op=True)]
    for work in reversed(works):
        work.wait()
    kept += [(one + two, 3 * total, f"turn {turn}: two groups"), (three.clone(), size, f"turn {turn}: the third call")]
    got = slowly(lab, -1)
    if rank == root:
        sent = slowly(lab, turn)
        dist.send(sent, (rank + 1) % size, group)
        sent.fill_(-3)
    elif rank == (root + 1) % size:
        dist.recv(got, root, group)
        kept.append((got * 2, turn * 2, f"turn {turn}: recv"))
    dist.all_reduce(slowly(lab, 1), group=group, async_op=True)  # that nobody waits for, and whose tensor is let go
    return kept


def threads(lab):
    """Each with a group and a stream of its own."""
    groups = [dist.new_group(timeout=datetime.timedelta(seconds=PATIENCE_S)) for _ in range(2)]
    kept = [[], []]

    def work(number):
        with in_stream(torch.cuda.Stream() if lab.device.type == "cuda" else None):
            for turn in range(ROUNDS // 2):
                x = slowly(lab, turn + number + lab.rank)
                dist.all_reduce(x, group=groups[number])
                kept[number].append((x + 1, lab.size * (turn + number) + lab.size * (lab.size - 1) / 2 + 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert len(kept[number]) == ROUNDS // 2, f"thread {number} ended after {len(kept[number])} turns"
        for turn, (got, expected) in enumerate(kept[number]):
            lab.same(got, torch.full_like(got, expected, device="cpu"), f"thread {number}, turn {turn}")
