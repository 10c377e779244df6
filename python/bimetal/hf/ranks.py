"""Accelerate on ranks that have no CUDA: it would take each for a single process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist


@contextlib.contextmanager
def all_ranks_counted() -> Iterator[None]:
    """Within it Accelerate and the Trainer take ranks of the process group for what they are, whatever their devices.

    Accelerate joins ranks without CUDA only where it is told to use the CPU; a Mac's GPU it never joins. So it is told, and the
    device is named where there is one.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1 or torch.cuda.is_available():
        yield
        return
    from accelerate.state import PartialState

    prepare = PartialState._prepare_backend
    has_mps = torch.backends.mps.is_available()

    def prepared(self: Any, cpu: bool = False, *arguments: Any, **options: Any) -> Any:
        if has_mps and not cpu and self.device is None:
            self.device = torch.device("mps")
        return prepare(self, True, *arguments, **options)

    PartialState._prepare_backend = prepared
    try:
        yield
    finally:
        PartialState._prepare_backend = prepare


def refuse_to_train_alone(processes: int) -> None:
    """Raises RuntimeError where a launcher has started several ranks and Accelerate counts one: each would train a model of its own."""
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if processes != world:
        raise RuntimeError(f"Accelerate counts {processes} process{'' if processes == 1 else 'es'} of {world} ranks, so that each would train "
                           "a model of its own: something has made its state before bimetal.hf could (PartialState, Accelerator or "
                           "TrainingArguments). Call torch.distributed.init_process_group(\"bimetal\") and import bimetal.hf first, "
                           "or pass use_cpu=True (Trainer), cpu=True (Accelerator)")
