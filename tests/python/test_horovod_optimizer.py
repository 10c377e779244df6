"""hvd.DistributedOptimizer for PyTorch, beside one process with the joined batch, and in its corner cases."""

import os
import sys
import unittest
import warnings

import ranks
import torch
from ranks import raises
from torch import nn

import bimetal.horovod.torch as hvd


def model_64():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 40), nn.Tanh(), nn.Linear(40, 3)).double()


def joined_batch(step, ranks_, passes):
    generator = torch.Generator().manual_seed(step)
    count = 4 * ranks_ * passes
    return (torch.randn(count, 6, dtype=torch.float64, generator=generator),
            torch.randn(count, 3, dtype=torch.float64, generator=generator))


def optimizers_of(parameters):
    parameters = list(parameters)
    return {"sgd": torch.optim.SGD(parameters, lr=0.05, momentum=0.9), "adam": torch.optim.Adam(parameters, lr=0.01)}


def train_alone(kind, size, passes, clip):
    model = model_64()
    optimizer = optimizers_of(model.parameters())[kind]
    for step in range(6):
        inputs, targets = joined_batch(step, size, passes)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def train_distributed(kind, passes, clip, threshold, **options):
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(threshold)
    rank, size = hvd.rank(), hvd.size()
    model = model_64()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)  # until broadcast_parameters
    optimizer = optimizers_of(model.parameters())[kind]
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         backward_passes_per_step=passes, **options)
    assert type(optimizer).__name__.lower() == kind
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(6):
        inputs, targets = (whole.reshape(size, passes, 4, -1) for whole in joined_batch(step, size, passes))
        optimizer.zero_grad()
        for one in range(passes):
            (nn.functional.mse_loss(model(inputs[rank, one]), targets[rank, one]) / passes).backward()
        if clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return [p.detach() for p in model.parameters()]


def optimizer_is_exact():
    hvd.init()
    worst = 0.0
    for kind in ("sgd", "adam"):
        for passes, clip, threshold, options in (
                (1, False, 1 << 24, {}), (3, False, 1, {}), (1, True, 3000, {}), (2, True, 3000, {}),
                (1, False, 3000, {"num_groups": 2}), (1, False, 1 << 24, {"gradient_predivide_factor": 2.0})):
            alone = train_alone(kind, hvd.size(), passes, clip)
            got = train_distributed(kind, passes, clip, threshold, **options)
            for mine, expected in zip(got, alone, strict=True):
                worst = max(worst, ((mine - expected).abs() / expected.abs().clamp(min=1e-3)).max().item())
    return worst


def optimizer_corner_cases():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model = nn.ModuleDict({"used": nn.Linear(4, 2), "sometimes": nn.Linear(4, 2)})
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = model["sometimes"].weight.detach().clone()
    model["used" if rank else "sometimes"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    torch.testing.assert_close(before - model["sometimes"].weight, torch.full((2, 4), 1.0 / size))
    assert optimizer.param_groups[0]["lr"] == 0.5
    model["used"](torch.ones(1, 4)).sum().backward()
    raises(AssertionError, optimizer.zero_grad, "prohibited")
    raises(AssertionError, model["used"](torch.ones(1, 4)).sum().backward, "backward_passes_per_step")
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(one.message) for one in told)
    optimizer.zero_grad()
    # An optimizer that takes the place of another one.
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(),
                                         compression=hvd.Compression.fp16, op=hvd.Sum)
    del scheduler
    for _ in range(3):
        optimizer.zero_grad()
        model["used"](torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert model["used"].weight.grad.tolist() == [[float(size)] * 4] * 2
    named = list(model.named_parameters())
    for wrong, word in (([named[0]] + named, "unique"), (named[1:], "not in named_parameters"),
                        ([p for _, p in named], "pairs")):
        raises(ValueError, lambda wrong=wrong: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), wrong), word)
    raises(ValueError, lambda: hvd.DistributedOptimizer(optimizer), "already")
    for dense in (False, True):
        embedding = nn.Embedding(10, 3, sparse=True)
        hvd.broadcast_parameters(embedding.state_dict(), root_rank=0)
        start = embedding.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), sparse_as_dense=dense)
        embedding(torch.tensor([rank, 9, 9])).sum().backward()
        optimizer.step()
        assert embedding.weight.grad.is_sparse  # as the optimizer expects it
        expected = torch.zeros(10, 3)
        expected[9] = 2.0
        expected[:size] = 1.0 / size
        torch.testing.assert_close(start - embedding.weight, expected)
    return "done"


def join_in_training():
    hvd.init()
    model = model_64()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(2 + 3 * hvd.rank()):
        optimizer.zero_grad()
        inputs, targets = joined_batch(step, 1, 1)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    everyone_ = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0))
    assert all(torch.equal(everyone_[0], other) for other in everyone_)
    return last


class Optimizer(unittest.TestCase):
    def test_as_one_process_with_the_joined_batch(self):
        worst = ranks.on_ranks(3, optimizer_is_exact, backend=None)
        print(f"largest relative difference {max(worst):.1e}", file=sys.stderr)
        self.assertLess(max(worst), 1e-12)

    def test_corner_cases(self):
        self.assertEqual(ranks.on_ranks(2, optimizer_corner_cases, backend=None), ["done"] * 2)

    def test_join(self):
        self.assertEqual(ranks.on_ranks(3, join_in_training, backend=None), [2] * 3)


if __name__ == "__main__":
    ranks.main(globals())
