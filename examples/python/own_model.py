"""A model of one's own, trained by the program on unlike workers: examples/own_model.toml names make_task.

    PYTHONPATH=examples/python bimetal train examples/own_model.toml
"""

import data
import torch
from torch import nn

from bimetal.task import Dropout, Task


class Mixer(nn.Module):
    """One block of an MLP-Mixer (Tolstikhin et al. 2021): between patches, then between their numbers."""

    def __init__(self, patches: int, width: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.between_patches = nn.Sequential(nn.Linear(patches, patches), nn.GELU(), nn.Linear(patches, patches))
        self.between_numbers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = Dropout(0.1)  # its masks depend on the sample alone, not on the worker

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.between_patches(self.norms[0](x).mT).mT
        return x + self.dropout(self.between_numbers(self.norms[1](x)))


class Patches(nn.Module):
    def __init__(self, size: int, width: int):
        super().__init__()
        self.cut = nn.Conv2d(1, width, size, stride=size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.cut(images).flatten(2).mT


class Head(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.classes = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(x.mean(1))


def make_task(job: dict) -> Task:
    """`job`: the job file's tables, with every key."""
    width = 64
    return Task(
        make_model=lambda: nn.Sequential(Patches(4, width), *(Mixer(49, width) for _ in range(4)), Head(width)),
        training=data.fashion_mnist(20_000),
        evaluation=data.fashion_mnist(2_000, test=True),
        loss_sum=lambda outputs, batch: nn.functional.cross_entropy(outputs, batch[-1], reduction="sum"),
        metrics={"accuracy": lambda outputs, batch: (outputs.argmax(1) == batch[-1]).sum()})
