"""DeepSpeed's own engine, ZeRO-2 and ZeRO-3, on process groups of the backend, compared with one process."""

import os
import pathlib
import sys
import unittest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))

import models  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

STEPS, BATCH, ACCUMULATED = 4, 4, 2


def make_model():
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)), nn.Linear(16, 3))


def batch_of(number, rank):
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(BATCH, 16, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


def by_deepspeed(stages):
    import deepspeed

    import bimetal
    # An all-reduce in shared memory of DeepSpeed's own, which it would compile first and use in the backend's place.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    found = []
    for stage in stages:
        model = make_model()
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), config={
                "train_batch_size": BATCH * ACCUMULATED * dist.get_world_size(),
                "gradient_accumulation_steps": ACCUMULATED, "train_micro_batch_size_per_gpu": BATCH,
                "gradient_clipping": 0.5,
                "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False})
        for number in range(STEPS * ACCUMULATED):
            inputs, targets = batch_of(number, dist.get_rank())
            engine.backward(nn.functional.cross_entropy(engine(inputs), targets))
            engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            found.append([parameter.detach().float().tolist() for parameter in model.parameters()])
    calls = str(bimetal.flight_recorder())
    assert "reduce" in calls and "gather" in calls, calls  # it has gone by the backend
    return found


def plainly(ranks_in_all):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for part in range(ACCUMULATED):
            for rank in range(ranks_in_all):
                inputs, targets = batch_of(step * ACCUMULATED + part, rank)
                (nn.functional.cross_entropy(model(inputs), targets) / (ACCUMULATED * ranks_in_all)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().double() for parameter in model.parameters()]


class Engine(unittest.TestCase):
    def test_zero_2_and_3_train_what_one_process_does(self):
        reference = plainly(2)
        for of_rank in ranks.on_ranks(2, by_deepspeed, [2, 3], timeout=300):
            for stage, parameters in zip((2, 3), of_rank, strict=True):
                self.assertLess(models.difference(parameters, reference), 1e-4, stage)


if __name__ == "__main__":
    ranks.main(globals())
