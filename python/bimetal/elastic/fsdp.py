"""Models of FSDP2 in folders of torch.distributed.checkpoint. Imported only if there is such a model: its imports take
a while."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor


def is_one(model: nn.Module) -> bool:
    return any(isinstance(one, DTensor) for one in model.parameters())


def save(model: nn.Module, optimizer: torch.optim.Optimizer, path: str) -> None:
    """Each rank its part, into a folder that is not there yet. Collective."""
    checkpoint.save(get_model_state_dict(model), checkpoint_id=os.path.join(path, "model"))
    if optimizer.state:  # to ask for states is to make them, which is a step
        checkpoint.save(get_optimizer_state_dict(model, optimizer), checkpoint_id=os.path.join(path, "optimizer"))


def load(model: nn.Module, optimizer: torch.optim.Optimizer, path: str) -> None:
    """Collective."""
    values = get_model_state_dict(model)
    checkpoint.load(values, checkpoint_id=os.path.join(path, "model"))
    set_model_state_dict(model, values)
    learnt = os.path.join(path, "optimizer")
    if os.path.isdir(learnt):
        states = get_optimizer_state_dict(model, optimizer)
        checkpoint.load(states, checkpoint_id=learnt)
        set_optimizer_state_dict(model, optimizer, states)
