"""Every collective of torch.distributed on backend bimetal, beside what it must give."""

import functools
import itertools
import unittest

import ranks
import torch
import torch.distributed as dist

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
         torch.int64, torch.uint8]
MOVED_TYPES = TYPES + [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16]
SIZES = [0, 1, 7, 1000, 300_000]


def values(count, dtype, rank):
    """Small whole numbers, unlike on each rank: every sum is exact in every type."""
    numbers = (torch.arange(count) * 7 + rank * 3) % 5 + 1
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


def everyone(count, dtype):
    return [values(count, dtype, rank) for rank in range(dist.get_world_size())]


def same(a, b, what):
    as_bytes = a.dtype == b.dtype and a.shape == b.shape and \
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) if a.dim() else a.equal(b)
    assert as_bytes, f"{what}: {a.flatten()[:8]} is not {b.flatten()[:8]}"


def check_reductions():
    size, rank = dist.get_world_size(), dist.get_rank()
    references = {
        dist.ReduceOp.SUM: lambda all: torch.stack(all).sum(0),
        dist.ReduceOp.MIN: lambda all: torch.stack(all).amin(0),
        dist.ReduceOp.MAX: lambda all: torch.stack(all).amax(0),
        dist.ReduceOp.PRODUCT: lambda all: torch.stack(all).prod(0),
    }
    for dtype, (op, reference), count in itertools.product(TYPES, references.items(), SIZES):
        if count > 1000 and dtype not in (torch.float32, torch.int64):
            continue
        expected = reference([t.double() for t in everyone(count, dtype)]) if count else torch.empty(0)
        if dtype in (torch.int8, torch.uint8):
            expected = reference([t.long() for t in everyone(count, dtype)]) if count else torch.empty(0)
        expected = expected.to(dtype)
        got = values(count, dtype, rank)
        dist.all_reduce(got, op)
        same(got, expected, f"all_reduce {dtype} {op} {count}")
        for root in (0, size - 1):
            got = values(count, dtype, rank)
            dist.reduce(got, root, op)
            same(got, expected if rank == root else values(count, dtype, rank), f"reduce {dtype} {op} {count}")
        parts = [values(count, dtype, rank + r) for r in range(size)]
        kept = [part.clone() for part in parts]
        got = torch.empty(count, dtype=dtype)
        dist.reduce_scatter(got, parts, op)
        whole = torch.cat(parts)
        single = torch.empty(count, dtype=dtype)
        dist.reduce_scatter_tensor(single, whole, op)
        wide = torch.int64 if not dtype.is_floating_point else torch.float64
        mine = [values(count, dtype, rank + r).to(wide) for r in range(size)]
        expected = reference(mine).to(dtype) if count else got
        same(got, expected, f"reduce_scatter {dtype} {op} {count}")
        same(single, expected, f"reduce_scatter_tensor {dtype} {op} {count}")
        for part, before in zip(parts, kept, strict=True):
            same(part, before, "inputs of reduce_scatter")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        got = values(9, dtype, rank)
        dist.all_reduce(got, dist.ReduceOp.AVG)
        torch.testing.assert_close(got, torch.stack(everyone(9, dtype)).mean(0))
    for half in (0.5, torch.tensor([0.5])):
        got = values(9, torch.float64, rank)
        dist.all_reduce(got, dist._make_nccl_premul_sum(half))
        same(got, torch.stack(everyone(9, torch.float64)).sum(0) / 2, "premul_sum")
    got = values(9, torch.complex64, rank) * 1j
    dist.all_reduce(got)
    same(got, sum(everyone(9, torch.complex64)) * 1j, "all_reduce of complex")


def check_bits():
    size, rank = dist.get_world_size(), dist.get_rank()
    ops = [(dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or), (dist.ReduceOp.BXOR, torch.bitwise_xor)]
    types = [dtype for dtype in [*TYPES, torch.bool] if not dtype.is_floating_point]
    for dtype, (op, method), count in itertools.product(types, ops, SIZES[:-1]):
        expected = functools.reduce(method, everyone(count, dtype))
        got = values(2 * count, dtype, rank).view(count, 2).t().contiguous().t()
        dist.all_reduce(got, op)
        same(got.contiguous(), functools.reduce(method, everyone(2 * count, dtype)).view(count, 2), f"{op} {dtype} {count}")
        for root in (0, size - 1):
            got = values(count, dtype, rank)
            dist.reduce(got, root, op)
            same(got, expected if rank == root else values(count, dtype, rank), f"reduce {op} {dtype} {count}")
    one, parts = torch.empty(2, dtype=torch.int32), [values(2, torch.int32, rank)] * size
    for call in (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
                 lambda: dist.reduce_scatter(one, parts, dist.ReduceOp.BOR)):
        assert ranks.raises(dist.DistBackendError, call).code == "unsupported"
    unlike = dist.ReduceOp.BAND if rank == 0 else dist.ReduceOp.BOR
    part = dist.new_group()
    ranks.refused(lambda: dist.all_reduce(one, unlike, group=part), "call_mismatch", "operation of bits")


def check_movement():
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype, count in itertools.product(MOVED_TYPES, SIZES):
        if count > 1000 and dtype != torch.float32:
            continue
        mine, all = values(count, dtype, rank), everyone(count, dtype)
        what = f"{dtype} {count}"
        for root in (0, size - 1):
            got = mine.clone()
            dist.broadcast(got, root)
            same(got, all[root], f"broadcast {what}")
            lists = [torch.empty_like(mine) for _ in all] if rank == root else None
            dist.gather(mine, lists, root)
            for got, expected in zip(lists or [], all):
                same(got, expected, f"gather {what}")
            check_gather_single(mine, all, root)
            got = torch.empty_like(mine)
            dist.scatter(got, [values(count, dtype, r + root) for r in range(size)] if rank == root else None, root)
            same(got, values(count, dtype, rank + root), f"scatter {what}")
        lists = [torch.empty_like(mine) for _ in all]
        dist.all_gather(lists, mine)
        joined = torch.empty(size * count, dtype=dtype)
        dist.all_gather_into_tensor(joined, mine)
        for r, expected in enumerate(all):
            same(lists[r], expected, f"all_gather {what}")
            same(joined[r * count:(r + 1) * count], expected, f"all_gather_into_tensor {what}")
        in_place = torch.empty(size * count, dtype=dtype)
        own = in_place[rank * count:(rank + 1) * count]
        own.copy_(mine)
        dist.all_gather_into_tensor(in_place, own)
        same(in_place, joined, f"all_gather_into_tensor in place {what}")
        lists = [torch.empty_like(mine) for _ in all]
        dist.all_to_all(lists, [values(count, dtype, rank * size + r) for r in range(size)])
        for r in range(size):
            same(lists[r], values(count, dtype, r * size + rank), f"all_to_all {what}")


def check_gather_single(mine, all, root):
    if not hasattr(dist, "gather_single"):  # before torch 2.14
        return
    whole = torch.empty(len(all) * mine.numel(), dtype=mine.dtype) if dist.get_rank() == root else None
    dist.gather_single(mine, whole, root)
    if whole is not None:
        same(whole, torch.cat(all), f"gather_single {mine.dtype} {mine.numel()}")


def check_unequal():
    size, rank = dist.get_world_size(), dist.get_rank()
    lists = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(lists, values(rank + 1, torch.float32, rank))
    for r in range(size):
        same(lists[r], values(r + 1, torch.float32, r), "all_gather of unlike sizes")
    for dtype in (torch.float64, torch.complex64, torch.bfloat16):
        lists = [torch.empty(2, r, dtype=dtype) for r in range(size)]  # rank 0 has nothing
        dist.all_gather(lists, values(2 * rank, dtype, rank).reshape(2, rank))
        for r in range(size):
            same(lists[r], values(2 * r, dtype, r).reshape(2, r), f"all_gather of unlike sizes, {dtype}")
        parts = [values(3 * r, dtype, rank) for r in range(size)]
        own = torch.empty(3 * rank, dtype=dtype)
        dist.reduce_scatter(own, parts)
        expected = sum(values(3 * rank, dtype, r) for r in range(size)) if rank else own
        same(own, expected, f"reduce_scatter of unlike sizes, {dtype}")
    try:
        dist.all_gather([torch.empty(r + 1) for r in range(size)], torch.empty(size + 5))
        raise AssertionError("an input of another size than its place was taken")
    except dist.DistBackendError as error:
        assert "are needed" in str(error), error
    send = [r + 2 * rank for r in range(size)]
    receive = [rank + 2 * r for r in range(size)]
    got = torch.empty(sum(receive), 3)
    dist.all_to_all_single(got, torch.full((sum(send), 3), float(rank)), receive, send)
    same(got, torch.cat([torch.full((receive[r], 3), float(r)) for r in range(size)]), "all_to_all_single")


def check_strided():
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(12.0).reshape(3, 4)
    view = whole.t()
    dist.all_reduce(view)
    same(whole, torch.arange(12.0).reshape(3, 4) * size, "all_reduce of a transposed view")
    target = torch.zeros(6, 2)
    dist.broadcast(target[:, 1] if rank else torch.arange(6.0), 0)
    if rank:
        same(target, torch.stack([torch.zeros(6), torch.arange(6.0)], 1), "broadcast into a column")
    column = torch.zeros(size * 2, 2)
    dist.all_gather_into_tensor(column[:, 0], torch.full((2,), float(rank)))
    same(column[:, 0].contiguous(), torch.arange(float(size)).repeat_interleave(2), "all_gather into a column")


def check_coalesced():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [values(n, torch.float32, rank) for n in (1, 10, 100)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, n in zip(tensors, (1, 10, 100), strict=True):
        same(tensor, torch.stack(everyone(n, torch.float32)).sum(0), "coalesced all_reduce")
    outputs = [torch.empty(size * n) for n in (2, 5)]
    parts = [torch.empty(2), torch.empty(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, n in zip(outputs, (2, 5), strict=True):
            dist.all_gather_into_tensor(output, values(n, torch.float32, rank))
    manager.wait()
    with dist._coalescing_manager(async_ops=True) as manager:
        for part, output in zip(parts, outputs, strict=True):
            dist.reduce_scatter_tensor(part, output)
    manager.wait()
    for part, n in zip(parts, (2, 5), strict=True):
        same(part, values(n, torch.float32, rank) * size, "coalesced reduce_scatter")


def check_messages():
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(1000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, values(1000, torch.float32, rank), after),
                                        dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    same(got, values(1000, torch.float32, before), "batch_isend_irecv")
    if rank == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
    elif rank == 1:
        first, second = torch.empty(1), torch.empty(1)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        assert (first.item(), second.item()) == (1.0, 2.0)


def check_messages_from_anybody():
    rank, size = dist.get_rank(), dist.get_world_size()
    for group in (None, dist.new_group(backend="gloo")):
        for tag, length in ((9, 5), (10, 300_000)):  # each its own: a fast sender is ahead of a slow one
            if rank == 0:
                senders = []
                for _ in range(2 * (size - 1)):
                    got = torch.empty(length)
                    senders.append(dist.recv(got, group=group, tag=tag))
                    same(got, torch.full((length,), float(senders[-1])), f"from anybody, who is {senders[-1]}")
                assert sorted(senders) == sorted([*range(1, size)] * 2), senders
            else:
                for _ in range(2):
                    dist.send(torch.full((length,), float(rank)), 0, group=group, tag=tag)
    strided = torch.zeros(4, 2)[:, 1]
    work = dist.irecv(strided, tag=11)
    dist.send(torch.full((4,), float(rank)), (rank + 1) % size, tag=11)
    work.wait()
    assert strided.tolist() == [float((rank - 1) % size)] * 4, strided
    # In a group of other ranks the sender's number is still the global one.
    part = dist.new_group(list(reversed(range(size))))
    if rank == size - 1:
        dist.send(torch.ones(1), 0, group=part)
    elif rank == 0:
        assert dist.recv(torch.empty(1), group=part) == size - 1


def sparse_values(rank, dtype=torch.float32):
    rows = torch.tensor([[rank, 3, rank + 1]])  # rank 3 has one twice, rank 2 none
    numbers = (torch.arange(6).reshape(3, 2) + rank).to(dtype)
    sparse = torch.sparse_coo_tensor(rows, numbers, (8, 2))
    return sparse if rank != 2 else torch.sparse_coo_tensor(rows[:, :0], numbers[:0], (8, 2))


def check_sparse():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        expected = torch.stack([sparse_values(r, dtype).to_dense() for r in range(size)]).sum(0)
        got = sparse_values(rank, dtype)
        dist.all_reduce(got)
        same(got.to_dense(), expected, f"sparse all_reduce {dtype}")
        assert got.is_coalesced(), got
    mean = sparse_values(rank)
    work = dist.all_reduce(mean, dist.ReduceOp.AVG, async_op=True)
    total = torch.ones(3)
    dist.all_reduce(total)  # comes behind, on all ranks
    work.wait()
    torch.testing.assert_close(mean.to_dense(), torch.stack([sparse_values(r).to_dense() for r in range(size)]).mean(0))
    ranks.refused(lambda: dist.all_reduce(sparse_values(rank), dist.ReduceOp.MAX), "unsupported", "sparse")
    shape = (8, 2) if rank == 0 else (9, 2)
    odd = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), shape)
    ranks.refused(lambda: dist.all_reduce(odd), "call_mismatch", "shape")


def check_objects():
    rank, size = dist.get_rank(), dist.get_world_size()
    thing = {"rank": rank, "text": "x" * rank, "tensor": torch.ones(rank)}
    gathered = [None] * size
    dist.all_gather_object(gathered, thing)
    assert [g["text"] for g in gathered] == ["x" * r for r in range(size)]
    things = [thing] if rank == 1 else [None]
    dist.broadcast_object_list(things, src=1)
    assert things[0]["rank"] == 1
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert received == [f"for {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert rank != 0 or gathered == list(range(size))


def check_futures():
    size = dist.get_world_size()
    work = dist.all_reduce(torch.ones(1 << 18), async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0][:3] * 2)
    assert doubled.wait().tolist() == [2.0 * size] * 3
    work.wait()
    assert work.is_completed() and work.is_success()
    works = [dist.all_reduce(torch.full((n,), 1.0), async_op=True) for n in range(1, 50)]
    for future in [work.get_future() for work in works]:
        assert future.wait()[0][0].item() == size


CHECKS = [check_reductions, check_bits, check_movement, check_unequal, check_strided, check_coalesced,
          check_messages, check_messages_from_anybody, check_sparse, check_objects,
          check_futures]


def all_checks():
    for check in CHECKS:
        check()
        dist.barrier()
        print(check.__name__, "passed", flush=True)
    return len(CHECKS)


class Collectives(unittest.TestCase):
    def test_two_ranks(self):
        self.assertEqual(ranks.on_ranks(2, all_checks), [len(CHECKS)] * 2)

    def test_four_ranks(self):
        self.assertEqual(ranks.on_ranks(4, all_checks), [len(CHECKS)] * 4)


if __name__ == "__main__":
    ranks.main(globals())
