"""torch's own DDP and FSDP2 on backend bimetal: the same losses as on Gloo."""

import unittest

import models
import ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import bimetal

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    fully_shard = None

STEPS = 6
WAYS = ("ddp", "fsdp") if fully_shard else ("ddp",)


def parallel(name, how, group):
    model = models.make(name)
    if how == "ddp":
        return DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.02)
    mesh = DeviceMesh.from_group(group, "cpu")
    for part in (model.blocks if name == "gpt" else [model.features]):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def seconds_are_refused():
    sampler = bimetal.BalancedBatchSampler(8, 4)
    next(iter(sampler))
    model = parallel("cnn", "fsdp", dist.group.WORLD)
    error = ranks.raises(bimetal.Error, lambda: sampler.finish_step(0.1), "FSDP", "balance=")
    sampler.finish_step()
    return error.code if model else None


def losses(name, how, group):
    """The mean over the ranks, after each step."""
    model = parallel(name, how, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(STEPS):
        loss = models.loss_of(model, *models.batch(name, step % 2, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM, group=group)
        seen.append(mean.item() / dist.get_world_size())
    return seen


def on_both():
    gloo = dist.new_group(backend="gloo")
    return {f"{how} {name}": [losses(name, how, dist.group.WORLD), losses(name, how, gloo)]
            for how in WAYS for name in ("cnn", "gpt")}


class Training(unittest.TestCase):
    def same_losses(self, count):
        for result in ranks.on_ranks(count, on_both, timeout=240):
            self.assertEqual(len(result), 2 * len(WAYS))
            for what, (ours, theirs) in result.items():
                with self.subTest(what):
                    self.assertLess(ours[-1], ours[0], "it does not learn")
                    for mine, other in zip(ours, theirs, strict=True):
                        # Sums of several ranks may be rounded in another order.
                        self.assertAlmostEqual(mine, other, delta=1e-5 * abs(other))

    def test_two_ranks(self):
        self.same_losses(2)

    @unittest.skipUnless(fully_shard, "FSDP2 is torch's from 2.6 on")
    def test_fsdp_takes_no_seconds(self):
        self.assertEqual(ranks.on_ranks(2, seconds_are_refused), ["unsupported"] * 2)


if __name__ == "__main__":
    ranks.main(globals())
