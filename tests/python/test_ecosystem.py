"""Uses of process groups by torch.distributed: meshes, checkpoints, groups of groups."""

import datetime
import os
import pathlib
import tempfile
import time
import unittest
import warnings

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import bimetal


def meshes():
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("outer", "inner"))
    assert dist.get_backend(mesh.get_group("inner")) == "bimetal"
    inner = torch.tensor([float(rank)])
    dist.all_reduce(inner, group=mesh.get_group("inner"))
    assert inner.item() == 2 * (rank // 2 * 2) + 1
    outer = torch.tensor([float(rank)])
    dist.all_reduce(outer, group=mesh.get_group("outer"))
    assert outer.item() == sum(range(rank % 2, size, 2))
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=mesh)  # replicated over "outer", sharded over "inner"
    model(torch.ones(2, 8)).sum().backward()
    torch.testing.assert_close(model.weight.grad.full_tensor(), torch.full((8, 8), 2.0))


def checkpoints(folder):
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = fully_shard(torch.nn.Linear(6, 10))
    state = {"model": model.state_dict(), "rank": torch.tensor([rank])}
    checkpoint.save({"model": state["model"]}, checkpoint_id=folder)
    kept = model.weight.full_tensor().clone()
    with torch.no_grad():
        model.weight.zero_()
    loaded = {"model": model.state_dict()}
    checkpoint.load(loaded, checkpoint_id=folder)
    model.load_state_dict(loaded["model"])
    assert torch.equal(model.weight.full_tensor(), kept)


def groups():
    size, rank = dist.get_world_size(), dist.get_rank()
    before = bimetal.bytes_sent()
    halves = [dist.new_group([r for r in range(size) if r % 2 == odd]) for odd in (0, 1)]
    mine = halves[rank % 2]
    total = torch.tensor([rank])
    dist.all_reduce(total, group=mine)
    assert total.item() == sum(range(rank % 2, size, 2))
    assert bimetal.bytes_sent(mine) >= before  # one count for the job: the connections are shared
    dist.broadcast(total, src=rank % 2, group=mine)  # a global rank
    local = dist.new_group([0, size - 1], use_local_synchronization=True) if rank in (0, size - 1) else None
    if local:
        pair = torch.ones(1)
        dist.all_reduce(pair, group=local)
        assert pair.item() == 2
    part = dist.group.WORLD.split_group([0, 1] if rank < 2 else list(range(2, size)) or [0, 1])
    if rank < 2:
        total = torch.tensor([rank + 1.0])
        part.allreduce(total).wait()
        assert total.item() == 3
        again = dist.group.WORLD.split_group([1, 0], group_name="again")  # in the order of their ranks here
        total = torch.tensor([rank + 1.0])
        again.broadcast(total, 1).wait()
        assert total.item() == 2
        pair = dist.group.WORLD.split_group([rank], group_name="alone")  # two of one name
        assert pair.size() == 1
        ranks.raises(bimetal.Error, lambda: again.split_group([2]), "ranks [2] make no group")
    for group in halves:
        if rank in dist.get_process_group_ranks(group):
            dist.destroy_process_group(group)
    dist.barrier()
    subgroup, _ = dist.new_subgroups(group_size=2)
    total = torch.tensor([rank])
    dist.all_reduce(total, group=subgroup)
    assert total.item() == 2 * (rank // 2 * 2) + 1


def monitored_outside():
    """A rank that is not in the group is told, as torch does it, and does nothing."""
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        bimetal.monitored_barrier(group)
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bimetal.monitored_barrier(group)
    assert "not in the group" in str(told[0].message)
    ranks.raises(ValueError, lambda: bimetal.transport(group), "not in that group")


def monitored():
    rank = dist.get_rank()
    bimetal.monitored_barrier()
    if rank != 1:
        try:
            bimetal.monitored_barrier(timeout=datetime.timedelta(seconds=0.3))
            raise AssertionError("rank 1 was not missed")
        except bimetal.Error as error:
            assert (error.code, error.rank) == ("timeout", 1), error
    dist.barrier()


def other_things():
    assert dist.get_backend() == "bimetal"
    assert bimetal.device().type == ("cpu" if not torch.accelerator.is_available() else bimetal.device().type)
    assert bimetal.transport() in ("shm", "tcp")
    assert bimetal.flight_recorder()
    dist.group.WORLD._get_backend(torch.device("cpu"))._set_sequence_number_for_group()
    before = dist.group.WORLD._get_backend(torch.device("cpu"))._get_sequence_number_for_group()
    dist.barrier()
    after = dist.group.WORLD._get_backend(torch.device("cpu"))._get_sequence_number_for_group()
    assert after == before + 1, (before, after)
    for wrong in (lambda: dist.all_gather([torch.empty(1)], torch.ones(1)),
                  lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR)):
        try:
            wrong()
            raise AssertionError("no error")
        except (bimetal.Error, ValueError, RuntimeError):
            pass
    dist.barrier()


def everything(folder):
    for check in (meshes, groups, monitored_outside, monitored, other_things):
        check()
        print(check.__name__, "passed", flush=True)
    checkpoints(folder)
    return "done"


def again_and_again():
    """Default groups one after the other in one store that outlives them, as torchrun's does."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, is_master=rank == 0)
    for _ in range(3):
        dist.init_process_group("bimetal", store=store, rank=rank, world_size=size)
        pair = dist.new_group(list(range(size)))
        for group in (None, pair):
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            assert total.item() == size
        dist.destroy_process_group()
    store.add("left", 1)
    while rank == 0 and store.add("left", 0) < size:
        time.sleep(0.01)
    return "done"


def by_device(string):
    dist.init_process_group(string)
    total = torch.ones(1)
    dist.all_reduce(total)
    backend = dist.get_backend_config()
    dist.destroy_process_group()
    return [total.item(), backend]


class Ecosystem(unittest.TestCase):
    def test_everything_on_four_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(ranks.on_ranks(4, everything, folder), ["done"] * 4)
            self.assertTrue(list(pathlib.Path(folder).glob("*.distcp")))

    def test_default_groups_one_after_the_other(self):
        self.assertEqual(ranks.on_ranks(2, again_and_again, backend=None), ["done"] * 2)

    def test_backends_by_device(self):
        for string in ("cpu:bimetal,mps:bimetal", "cpu:bimetal,cuda:bimetal"):
            with self.subTest(string):
                for total, backend in ranks.on_ranks(2, by_device, string, backend=None):
                    self.assertEqual(total, 2)
                    self.assertIn("cpu:bimetal", backend)


if __name__ == "__main__":
    ranks.main(globals())
