"""Horovod's API for PyTorch: every operation, join(), and what becomes of a rank that is left alone."""

import json
import os
import time
import unittest

import models
import numpy
import ranks
import torch
from ranks import raises, refused

import bimetal
import bimetal.horovod.torch as hvd

TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64]


def values(rank, dtype=torch.float32, shape=(17, 3)):
    """Small whole numbers: sums and products are exact in every type."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + rank * 3) % 3 + 1).reshape(shape).to(dtype)


def everyone(dtype=torch.float32, shape=(17, 3)):
    return [values(rank, dtype, shape) for rank in range(hvd.size())]


def same(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape and torch.equal(got, expected), \
        f"{got} is not {expected}"


def check_basics():
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert hvd.rank() == int(os.environ["RANK"]) and hvd.size() == int(os.environ["WORLD_SIZE"])
    assert hvd.local_rank() == hvd.rank() and hvd.local_size() == hvd.size()
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert not hvd.mpi_built() and not hvd.gloo_built() and hvd.nccl_built() == 0
    hvd.init()  # does nothing


def check_allreduce():
    reference = {hvd.Sum: lambda t: t.sum(0), hvd.Min: lambda t: t.amin(0), hvd.Max: lambda t: t.amax(0),
                 hvd.Product: lambda t: t.prod(0)}
    for dtype in TYPES:
        stack = torch.stack([t.double() for t in everyone(dtype)])
        for op, of in reference.items():
            given = values(hvd.rank(), dtype)
            same(hvd.allreduce(given, op=op), of(stack).to(dtype))
            same(given, values(hvd.rank(), dtype))
        mean = stack.mean(0) if dtype.is_floating_point else (stack.sum(0) / hvd.size()).trunc()
        torch.testing.assert_close(hvd.allreduce(values(hvd.rank(), dtype)), mean.to(dtype))
    below_zero = torch.tensor([-1, -2, -5]) - hvd.rank()  # integers lose their fraction, as in Horovod
    same(hvd.allreduce(below_zero), (torch.stack([torch.tensor([-1.0, -2.0, -5.0]) - rank for rank in range(hvd.size())])
                                     .sum(0) / hvd.size()).trunc().long())
    for shape in ((), (0,), (0, 4), (3, 0), (100_000,)):
        same(hvd.allreduce(values(hvd.rank(), shape=shape), op=hvd.Sum), sum(everyone(shape=shape)))
    total = sum(everyone())
    same(hvd.allreduce(values(hvd.rank()), average=False, name="old"), total)
    same(hvd.allreduce(values(hvd.rank()), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), total)
    same(hvd.allreduce(values(hvd.rank(), torch.int64), op=hvd.Sum, prescale_factor=2.5), torch.stack(
        [(t * 2.5).long() for t in everyone(torch.int64)]).sum(0))
    same(hvd.allreduce(values(hvd.rank()), op=hvd.Sum, compression=hvd.Compression.fp16), total)
    target = values(hvd.rank()).t()  # strided
    assert hvd.allreduce_(target, op=hvd.Sum) is target
    same(target, total.t())


def check_async_and_order():
    mine = [torch.full((4,), float(hvd.rank() + k)) for k in range(20)]
    order = list(range(20)) if hvd.rank() % 2 else list(reversed(range(20)))
    handles = {k: hvd.allreduce_async_(mine[k], name=f"in any order {k}", op=hvd.Sum) for k in order}
    for k in range(20):
        expected = sum(float(rank + k) for rank in range(hvd.size()))
        assert hvd.synchronize(handles[k]).tolist() == [expected] * 4
        assert hvd.poll(handles[k])
    if hvd.rank() == 0:  # before the others ask for it
        handle = hvd.allreduce_async(mine[0], name="twice")
        assert not hvd.poll(handle)
        error = raises(bimetal.Error, lambda: hvd.allreduce_async(mine[0], name="twice"), "unique")
        assert error.code == "invalid_argument" and isinstance(error, ValueError)
        hvd.broadcast(torch.ones(1), 0, name="go")
    else:
        hvd.broadcast(torch.ones(1), 0, name="go")
        handle = hvd.allreduce_async(mine[0], name="twice")
    hvd.synchronize(handle)


def check_grouped():
    given = [values(hvd.rank(), dtype, (k + 1, 2)) for k, dtype in enumerate(TYPES)]
    for k, (got, dtype) in enumerate(zip(hvd.grouped_allreduce(given, op=hvd.Sum), TYPES, strict=True)):
        same(got, torch.stack([t.double() for t in everyone(dtype, (k + 1, 2))]).sum(0).to(dtype))
    result = hvd.grouped_allreduce_(given[-2:], op=hvd.Max, name="in place")
    assert result[0] is given[-2]
    gathered = hvd.grouped_allgather([values(hvd.rank()), values(hvd.rank(), torch.int32)])
    same(gathered[1], torch.cat(everyone(torch.int32)))
    scattered = hvd.grouped_reducescatter([values(hvd.rank()), values(hvd.rank())], op=hvd.Sum)
    same(scattered[0], scattered[1])
    handle = hvd.grouped_reducescatter_async([values(hvd.rank()), values(hvd.rank())], op=hvd.Sum, name="later")
    same(hvd.synchronize(handle)[1], scattered[1])


def check_sparse():
    rank, size = hvd.rank(), hvd.size()

    def rows(r):
        return torch.sparse_coo_tensor([[r, size]], torch.full((2, 3), r + 1.0), (size + 1, 3))
    total = sum(rows(r).to_dense() for r in range(size))
    for op, expected in ((hvd.Sum, total), (hvd.Average, total / size)):
        got = hvd.synchronize(hvd.sparse_allreduce_async(rows(rank), f"rows {op}", op))
        assert got.is_sparse
        torch.testing.assert_close(got.to_dense(), expected)
    raises(bimetal.Error, lambda: hvd.sparse_allreduce_async(rows(rank), "most", hvd.Max), "to_dense()")


def check_movement():
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*TYPES, torch.bool, torch.complex64]:
        rows = [values(r, dtype, (2 * r, 5)) for r in range(size)]  # rank 0 has none
        same(hvd.allgather(rows[rank]), torch.cat(rows))
        for root in (0, size - 1):
            given = values(rank, dtype)
            same(hvd.broadcast(given, root), values(root, dtype))
            same(given, values(rank, dtype))
            assert hvd.broadcast_(given, root) is given
            same(given, values(root, dtype))
        sent = torch.cat([values(10 * rank + to, dtype, (rank + to, 3)) for to in range(size)])
        got, splits = hvd.alltoall(sent, splits=torch.tensor([rank + to for to in range(size)]))
        same(got, torch.cat([values(10 * r + rank, dtype, (r + rank, 3)) for r in range(size)]))
        assert splits.tolist() == [r + rank for r in range(size)]
    same(hvd.alltoall(torch.full((size, 2), rank)), torch.arange(size).repeat_interleave(2).reshape(size, 2))
    for rows in (size * 3, size * 3 + 1, 1):
        parts = torch.stack([values(r, torch.float64, (rows, 2)) for r in range(size)])
        shares = [rows // size + (r < rows % size) for r in range(size)]
        for op, expected in ((hvd.Sum, parts.sum(0)), (hvd.Average, parts.mean(0)), (hvd.Max, parts.amax(0))):
            torch.testing.assert_close(hvd.reducescatter(parts[rank], op=op), expected.split(shares)[rank])


def check_gradients():
    rank, size = hvd.rank(), hvd.size()
    weights = values(rank, torch.float64) + rank
    all_weights = [values(r, torch.float64) + r for r in range(size)]
    mean = torch.stack(all_weights).mean(0)

    def gradient(operation, weight=weights):
        x = torch.ones(17, 3, dtype=torch.float64, requires_grad=True)
        (operation(x) * weight).sum().backward()
        return x.grad
    torch.testing.assert_close(gradient(hvd.allreduce), mean)
    torch.testing.assert_close(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), mean * size)
    torch.testing.assert_close(gradient(lambda x: hvd.broadcast(x, 1)), mean if rank == 1 else mean * 0)
    torch.testing.assert_close(gradient(hvd.allgather, torch.cat(all_weights)), all_weights[rank])
    back = torch.arange(17 * size * 3, dtype=torch.float64).reshape(-1, 3)[rank::size]
    x = torch.ones(17 * size, 3, dtype=torch.float64, requires_grad=True)
    (hvd.alltoall(x) * back.repeat(size, 1)).sum().backward()
    assert x.grad.shape == x.shape
    torch.testing.assert_close(x.grad[:17].sum(), torch.arange(
        17 * size * 3, dtype=torch.float64).reshape(-1, 3)[0::size].sum())
    x = torch.ones(size * 2, dtype=torch.float64, requires_grad=True)
    parts = torch.arange(1.0, size + 1).double().repeat_interleave(2)
    for op, expected in ((hvd.Sum, parts * size), (hvd.Average, parts)):  # as Horovod defines it
        x.grad = None
        (hvd.reducescatter(x, op=op) * (rank + 1.0)).sum().backward()
        torch.testing.assert_close(x.grad, expected)
    raises(ValueError, lambda: gradient(lambda x: hvd.allreduce(x, op=hvd.Max)), "no gradient")


def check_gradients_of_groups():
    rank, size = hvd.rank(), hvd.size()

    def gradients(grouped, single):
        """The gradients of a group, and of its tensors one by one."""
        found = []
        for operation in (grouped, lambda given: [single(one) for one in given]):
            given = [torch.ones(size * (k + 1), 3, dtype=torch.float64, requires_grad=True) for k in range(3)]
            results = operation([*given, torch.ones(size, dtype=torch.int64)])
            sum(((rank + k + 1.0) * torch.arange(float(r.numel())).view(r.shape) * r).sum()
                for k, r in enumerate(results[:3])).backward()
            found.append([one.grad for one in given])
        return found
    for op in (hvd.Sum, hvd.Average):
        for pair in ((lambda g, op=op: hvd.grouped_allreduce(g, op=op), lambda t, op=op: hvd.allreduce(t, op=op)),
                     (lambda g, op=op: hvd.grouped_reducescatter(g, op=op),
                      lambda t, op=op: hvd.reducescatter(t, op=op)), (hvd.grouped_allgather, hvd.allgather)):
            torch.testing.assert_close(*gradients(*pair))


def check_sync_batch_norm():
    """As one process with the joined batch: parts unlike, one of them empty, the loss a sum over samples."""
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(5)
    parts = [torch.randn(3 * r, 4, 5, dtype=torch.float64) * 3 + 2 for r in range(size)]
    alone, ours = (make(4, momentum=0.3).double() for make in (torch.nn.BatchNorm1d, hvd.SyncBatchNorm))
    for _ in range(2):
        whole = torch.cat(parts).requires_grad_()
        mine = parts[rank].clone().requires_grad_()
        weights = torch.cat(parts).sin()
        (alone(whole) ** 2 * weights).sum().backward()
        (ours(mine) ** 2 * parts[rank].sin()).sum().backward()
    torch.testing.assert_close(mine.grad, whole.grad.split([len(part) for part in parts])[rank], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), alone.weight.grad, rtol=1e-12, atol=1e-12)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.eval()(parts[-1]), alone.eval()(parts[-1]))
    raises(ValueError, lambda: ours(torch.ones(3)), "2D")


def check_objects():
    rank, size = hvd.rank(), hvd.size()
    thing = {"rank": rank, "tensor": torch.ones(rank), "array": numpy.arange(3.0), "scalar": numpy.float64(2.5),
             "nested": [(1, None), {"a": "b" * 5000}], "set": {1, 2}}
    got = hvd.broadcast_object(thing if rank == 1 else None, root_rank=1)
    assert got["rank"] == 1 and got["array"].tolist() == [0.0, 1.0, 2.0] and got["nested"] == thing["nested"]
    gathered = hvd.allgather_object(thing)
    assert [one["rank"] for one in gathered] == list(range(size)) and gathered[-1]["tensor"].shape == (size - 1,)
    raises(TypeError, lambda: hvd.broadcast_object(os.getcwd if rank == 0 else None), "sent")
    raises(TypeError, lambda: hvd.allgather_object(os.getcwd if rank == 1 else 3), "sent")
    assert hvd.broadcast_object("still in step", root_rank=0) == "still in step"


def check_broadcast_state():
    rank = hvd.rank()
    torch.manual_seed(rank)
    for make in (lambda p: torch.optim.SGD(p, lr=0.1 * (rank + 1), momentum=0.9),
                 lambda p: torch.optim.Adam(p, lr=0.1 * (rank + 1), betas=(0.8 + 0.01 * rank, 0.9)),
                 lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=rank == 0), torch.optim.LBFGS):
        model = models.Cnn()
        optimizer = make(model.parameters())
        if rank == 0:  # a checkpoint that rank 0 has loaded; new on the others
            def closure(model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = models.loss_of(model, *models.batch("cnn", 0, 0))
                loss.backward()
                return loss
            optimizer.step(closure)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        parts = [p.detach() for p in model.parameters()]
        states = hvd.allgather_object([parts, optimizer.state_dict()])
        first = json.dumps(states[0], default=lambda t: t.tolist())
        assert len(first) > 1000 and all(json.dumps(s, default=lambda t: t.tolist()) == first for s in states)


def check_errors():
    rank = hvd.rank()
    error = raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(10 + rank), name="x"), "(10,)", "(11,)", "rank 0",
                   "'allreduce.x'")
    assert error.code == "call_mismatch"
    raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(3, dtype=TYPES[rank % 2])), "uint8", "int8")
    raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(3), op=hvd.Sum if rank else hvd.Max), "op Max", "op Sum")
    raises(bimetal.Error, lambda: hvd.broadcast(torch.ones(3), root_rank=rank), "root rank 0", "root rank 1")
    raises(bimetal.Error, lambda: hvd.allgather(torch.ones(3, 2 + rank)), "(3, 2)")
    assert raises(bimetal.Error, lambda: hvd.broadcast(torch.ones(3), 99), "root rank 99").code == "invalid_argument"
    assert raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(3), op=hvd.Adasum)).code == "unsupported"
    raises(bimetal.Error, lambda: hvd.allgather(torch.tensor(1.0)), "reshape(1)")
    raises(bimetal.Error, lambda: hvd.alltoall(torch.ones(3), splits=[1, 1]), "splits")
    raises(ValueError, lambda: hvd.allreduce(torch.ones(3), process_set=hvd.ProcessSet([0])), "add_process_set")
    raises(ValueError, lambda: hvd.allreduce(torch.ones(3), average=True, op=hvd.Sum))
    before = time.monotonic()
    call = (lambda: hvd.allreduce(torch.ones(3), name="a")) if rank == 0 else \
        (lambda: hvd.broadcast(torch.ones(3), 0, name="b"))
    error = raises(bimetal.Error, call, "rank 0 for allreduce 'allreduce.a'", "rank 1 for broadcast 'broadcast.b'")
    assert error.code == "call_mismatch" and time.monotonic() - before < 30
    same(hvd.allreduce(values(rank), op=hvd.Sum), sum(everyone()))  # and go on


def check_join():
    rank, size = hvd.rank(), hvd.size()
    for turn in range(2):
        last = (size - 1) if turn == 0 else 0
        steps = 3 if rank == last else 1 + (rank % 2)
        for step in range(steps):
            taking_part = [r for r in range(size) if (3 if r == last else 1 + r % 2) > step]
            # Ranks that have joined count as zeros. Unnamed, so that the numbering must survive unlike counts.
            got = hvd.allreduce(torch.full((5,), float(rank + 1)), op=hvd.Sum)
            assert got.tolist() == [float(sum(r + 1 for r in taking_part))] * 5, (got, taking_part)
            got = hvd.allreduce(torch.full((2,), float(rank + 1)), name="mean")
            assert abs(got[0].item() - sum(r + 1 for r in taking_part) / size) < 1e-6
            assert hvd.allgather(torch.full((1, 2), float(rank)))[:, 0].tolist() == [float(r) for r in taking_part]
            same(hvd.broadcast(torch.full((3,), rank), last), torch.full((3,), last))
            hvd.grouped_allreduce([torch.ones(3), torch.ones(2, dtype=torch.int64)])
        if rank == last:
            refused(lambda: hvd.allreduce(torch.ones(1), op=hvd.Max), "unsupported", "joined")
            raises(bimetal.Error, lambda: hvd.broadcast(torch.ones(1), 1 - min(last, 1)), "joined")
        assert hvd.join() == last
        same(hvd.allreduce(values(rank), op=hvd.Sum), sum(everyone()))


CHECKS = [check_basics, check_allreduce, check_async_and_order, check_grouped, check_sparse, check_movement,
          check_gradients, check_gradients_of_groups, check_sync_batch_norm, check_objects, check_broadcast_state, check_errors, check_join]


def all_checks():
    hvd.init()
    for check in CHECKS:
        check()
        hvd.barrier()
        print(check.__name__, "passed", flush=True)
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()  # again, in the same job
    same(hvd.allreduce(values(hvd.rank()), op=hvd.Sum), sum(everyone()))
    return len(CHECKS)


def leave_early():
    hvd.init()
    hvd.allreduce(torch.ones(3))
    if hvd.rank() == 1:
        return "left"
    return raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(3))).code


def beside_torch_distributed():
    import torch.distributed as dist
    hvd.init()
    got = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
    mine = torch.ones(2)
    dist.all_reduce(mine)
    return [hvd.synchronize(got)[0].item(), mine[0].item()]


class Operations(unittest.TestCase):
    def test_three_ranks(self):
        self.assertEqual(ranks.on_ranks(3, all_checks, backend=None), [len(CHECKS)] * 3)

    def test_beside_a_group_of_torchs(self):
        self.assertEqual(ranks.on_ranks(2, beside_torch_distributed), [[2.0, 2.0]] * 2)


class Endings(unittest.TestCase):
    def test_a_rank_that_leaves_early_hangs_nobody(self):
        self.assertIn(ranks.on_ranks(2, leave_early, backend=None, timeout=60)[0], ("peer_lost", "aborted"))


if __name__ == "__main__":
    ranks.main(globals())
