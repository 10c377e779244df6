"""Equal beginnings: parameters, optimizer state and objects from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from bimetal.horovod.core.objects import allgather_object, broadcast_object
from bimetal.horovod.core.submit import submit, wait

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int,
                         process_set: Any = None) -> None:
    """Overwrites tensors with those of the root.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``; what is no tensor in
            them stays as it is. The same names, shapes and types on all ranks.
        root_rank: the rank that has the right ones.
    """
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"params are a state_dict, named_parameters() or parameters(), not {type(params).__name__}")
    values = list(params.items() if isinstance(params, Mapping) else params)
    tensors = [value[1] if isinstance(value, tuple) else value for value in values]
    tensors = [tensor.detach() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    wait(submit("broadcast", "parameters", tensors, lambda _: None, process_set, root=root_rank))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Gives all ranks the root's optimizer state: learning rates and other options, momenta, counts of steps.

    Args:
        optimizer: the same kind over the same parameters on all ranks; it may be new on some and used on others.
        model: for Horovod's signature; not needed.
    """
    del model
    state = broadcast_object(optimizer.state_dict(), root_rank, name="optimizer_state")
    optimizer.load_state_dict(state)
