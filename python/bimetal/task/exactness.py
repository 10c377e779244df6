"""Layers whose result depends on which samples are computed together, or by whom: see "Exactness" in docs/tasks.md."""

from __future__ import annotations

from torch import nn

from bimetal.task.dropout import Dropout


def findings(model: nn.Module) -> list[str]:
    """What in the model makes a result depend on how batches are split, one thing in each text."""
    found = []
    for name, module in model.named_modules():
        what = _finding(module)
        if what:
            found.append(f"{name or 'the model'} ({type(module).__name__}) {what}")
    return found


def require_exact(model: nn.Module) -> None:
    """Raises ValueError where there are such findings."""
    found = findings(model)
    if found:
        told = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
        raise ValueError(f"the result would depend on how batches are split between devices: {told}; or accept it with "
                         f"parallel.exact = \"relaxed\"")


def _finding(module: nn.Module) -> str | None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "normalises by whatever samples are beside each other: take nn.GroupNorm"
    if isinstance(module, Dropout):
        return None
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
        return "draws from a generator of each rank: take bimetal.task.Dropout"
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0:
        return "draws its dropout from a generator of each rank: set it to 0 and put bimetal.task.Dropout beside it"
    return None
