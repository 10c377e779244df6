"""Models in shards, of which every rank has a part: their state at a commit is in a folder of that commit."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal._errors import Error, error


class Shards:
    """A model that is in shards in this epoch.

    Args:
        model: of ``bimetal.zero.shard``, or of FSDP2's ``fully_shard``.
        optimizer: of the latter.
        folder: in which each commit has a folder; rank 0's, or that of all for FSDP2.
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer | None, folder: str | os.PathLike) -> None:
        self._model, self._optimizer, self._folder = model, optimizer, os.path.abspath(folder)
        self._of_torch = isinstance(model, nn.Module) and _fsdp().is_one(model)
        if self._of_torch and optimizer is None:
            raise error("state.keep() of a model of fully_shard needs its optimizer, too: state.keep(model, folder, optimizer=optimizer)",
                        "invalid_argument")
        if not self._of_torch and not hasattr(model, "save_checkpoint"):
            raise error("state.keep() is for what bimetal.zero.shard() returns, or a model of fully_shard(): whole models are parts of "
                        "State(model=model)", "invalid_argument")

    def save(self, number: int) -> None:
        """As of that commit. Collective; when it returns on one rank, all parts are on the disk."""
        path = self._path(number)
        if dist.get_rank() == 0:
            os.makedirs(self._folder, exist_ok=True)
        if not self._of_torch:
            self._model.save_checkpoint(path)
            return
        self.remove([number])  # of an earlier run
        dist.barrier()
        _fsdp().save(self._model, self._optimizer, path)

    def load(self, number: int) -> None:
        """Loads the state saved then into this epoch's shards. Collective."""
        path = self._path(number)
        try:
            if not self._of_torch:
                self._model.load_checkpoint(path)
                return
            _fsdp().load(self._model, self._optimizer, path)
        except Exception as failure:
            reads = self._of_torch or dist.get_rank() == 0
            if not reads or os.path.isdir(path) or isinstance(failure, Error) and failure.code in ("peer_lost", "aborted", "timeout"):
                raise
            raise error(f"the shards of commit {number} are not in {self._folder} of this machine, which rank {dist.get_rank()} is on: "
                        "state.keep(…, folder) needs one that all machines see", "invalid_argument") from failure

    def remove(self, numbers: list[int]) -> None:
        """Removes commits that nobody goes back to any more."""
        if dist.get_rank() == 0:
            for number in numbers:
                shutil.rmtree(self._path(number), ignore_errors=True)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"commit-{number}")


def _fsdp() -> Any:
    from bimetal.elastic import fsdp
    return fsdp
