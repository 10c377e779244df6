"""Ray Train's own TorchTrainer on the backend: people who have one change one word, TorchConfig(backend="bimetal")."""

import importlib.util
import os
import tempfile
import unittest

import clusters
import torch

LACKS = clusters.WHY_NOT or (None if importlib.util.find_spec("pyarrow") else "Ray Train is not installed: scripts/install_ray.sh")
STEPS = 6


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8, dtype=torch.float64), torch.nn.ReLU(), torch.nn.Linear(8, 1, dtype=torch.float64))


def samples():
    return torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def train(config):
    """As in Ray's documentation; the process group is Ray Train's."""
    import bimetal
    import ray.train
    import ray.train.torch
    import torch.distributed as dist

    shared = ray.train.torch.prepare_model(model())
    optimizer = torch.optim.SGD(shared.parameters(), 0.1)
    sampler, data = None, samples()
    if config["unequal"]:
        sampler = bimetal.BalancedBatchSampler(len(data), len(data), balance="fixed", weights=[3, 1], shuffle=False)
        shared.register_comm_hook(sampler, bimetal.sample_exact_hook)
    mine = range(dist.get_rank(), len(data), dist.get_world_size())
    for _ in range(STEPS):
        for batch in sampler or [list(mine)]:
            optimizer.zero_grad()
            (shared(data[batch]) ** 2).mean().backward()
            optimizer.step()
    with tempfile.TemporaryDirectory() as folder:  # Ray Train keeps metrics with a checkpoint alone
        kept = None
        if dist.get_rank() == 0:
            torch.save(shared.module.state_dict(), os.path.join(folder, "model.pt"))
            kept = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"backend": dist.get_backend(), "transport": bimetal.transport(), "ranks": dist.get_world_size(),
                          "batch": len(batch), "weight": shared.module[0].weight.flatten().tolist()}, checkpoint=kept)


def alone():
    single = model()
    optimizer = torch.optim.SGD(single.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (single(samples()) ** 2).mean().backward()
        optimizer.step()
    return single[0].weight.flatten().tolist()


@unittest.skipIf(LACKS, LACKS)
class TorchTrainer(clusters.OnCluster):
    OFFERED = ({}, {})

    def fit(self, unequal):
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        storage = clusters.TEMPORARY / "train"
        result = TorchTrainer(train, train_loop_config={"unequal": unequal}, torch_config=TorchConfig(backend="bimetal"),
                              scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=str(storage))).fit()
        self.assertEqual((result.metrics["backend"], result.metrics["ranks"]), ("bimetal", 2))
        for here, there in zip(result.metrics["weight"], alone(), strict=True):
            self.assertAlmostEqual(here, there, delta=1e-12)
        return result.metrics

    def test_the_word_is_all_that_changes(self):
        self.assertEqual(self.fit(unequal=False)["batch"], 12)

    def test_unequal_batches(self):
        self.assertEqual(self.fit(unequal=True)["batch"], 18)


if __name__ == "__main__":
    unittest.main(verbosity=2)
