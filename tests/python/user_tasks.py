"""Tasks as a user would write them, for test_user_task.py."""

import math
import os
import pathlib

import torch
from torch import nn
from torch.utils.data import TensorDataset

from bimetal.task import Dropout, Metric, Task

SAMPLES = 96


def points(samples, seed=3):
    """Points in 12 dimensions, and whether they lie on one side."""
    x = torch.randn(samples, 12, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :4].sum(1) > 0).long())


def right(outputs, batch):
    return (outputs.argmax(1) == batch[-1]).sum()


def entropy(outputs, batch):
    return nn.functional.cross_entropy(outputs, batch[-1], reduction="sum")


def layers(*between):
    return nn.Sequential(nn.Linear(12, 31), nn.Tanh(), *between, nn.Linear(31, 2))


def points_task(make_model, **more):
    return Task(make_model=make_model, training=points(SAMPLES), evaluation=points(40, seed=4), loss_sum=entropy,
                metrics={"accuracy": right}, **more)


def dense(job):
    return points_task(layers)


class CompiledTanh(nn.Tanh):
    """Works only where torch.compile calls it."""

    def forward(self, x):
        if not torch.compiler.is_compiling():
            raise RuntimeError("this layer is not compiled")
        return super().forward(x)


def compiled(job):
    return points_task(lambda: nn.Sequential(nn.Linear(12, 31), CompiledTanh(), nn.Linear(31, 2)))


def talking(job):
    """Each rank says something as it makes its model."""
    def make_model():
        print(f"a model is made by rank {os.environ['RANK']}")
        return layers()
    return points_task(make_model)


def dropped(job):
    return points_task(lambda: layers(Dropout(0.4)))


class Sentences:
    """Numbers of unequal length, the next one to be told; a map-style data set with weights of its own."""

    def __init__(self, samples):
        draw = torch.Generator().manual_seed(samples)
        self.lengths = torch.randint(2, 9, (samples,), generator=draw)
        self.tokens = torch.randint(0, 17, (samples, 10), generator=draw)
        self.weights = self.lengths

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, sample):
        targets = self.tokens[sample, 1:].clone()
        targets[self.lengths[sample]:] = -100
        return self.tokens[sample, :-1], targets


class Tied(nn.Module):
    """The table of its embedding is its head, too, and one matrix is not trained."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(17, 24)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = Head(self.table)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed = nn.Parameter(torch.randn(24, 24) / 5, requires_grad=False)
        self.change = nn.Linear(24, 24)

    def forward(self, x):
        return x + torch.tanh(self.change(x @ self.fixed))


class Head(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        return self.norm(x) @ self.table.weight.t()


def sentences(job):
    def loss_sum(outputs, batch):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch[-1].flatten(), ignore_index=-100,
                                           reduction="sum")

    return Task(make_model=Tied, training=Sentences(SAMPLES), evaluation=Sentences(40), loss_sum=loss_sum,
                metrics={"perplexity": Metric(of_mean=math.exp)}, counts="tokens",
                units=lambda model: [model.table, *model.blocks, model.head])


def nesterov(model):
    optimizer = torch.optim.SGD([{"params": [p for p in model.parameters() if p.dim() > 1]},
                                 {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.2}],
                                lr=0.1, momentum=0.9, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def own_optimizer(job):
    return points_task(layers, make_optimizer=nesterov)


def own_adam(job):
    return points_task(layers, make_optimizer=lambda model: torch.optim.NAdam(model.parameters(), lr=0.02))


# Tasks that are refused, or fail.

def batch_norm(job):
    return points_task(lambda: layers(nn.BatchNorm1d(31)))


def own_dropout(job):
    return points_task(lambda: layers(nn.Dropout(0.1)))


def no_task(job):
    return layers()


def mean_loss(job):
    task = dense(job)
    task.loss_sum = lambda outputs, batch: nn.functional.cross_entropy(outputs, batch[-1], reduction="none")
    return task


def forgotten_unit(job):
    return points_task(layers, units=lambda model: [model[0], model[1]])


def raising(job):
    return points_task(layers, collate=lambda items: pathlib.Path("/no/such/file").read_bytes())
