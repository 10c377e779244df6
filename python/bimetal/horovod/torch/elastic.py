"""``hvd.elastic`` for PyTorch: the state that a loop keeps of its model, optimizer and data, and its sampler."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from bimetal.horovod.core import world
from bimetal.horovod.core.elastic import HostsUpdatedInterrupt, ObjectState, State, run
from bimetal.horovod.core.objects import allgather_object
from bimetal.horovod.torch.ops import broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares a data set's samples out to the ranks, and knows which the epoch has seen when their number changes.

    Args:
        dataset: anything with a length; the same on all ranks.
        shuffle: another order in each epoch.
        seed: of that order; the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0):
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self._mine: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: nothing of it has been seen. Call it at the end of the one before, so that a state that is
        committed between the two knows."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """The loop has trained on the batch of that number since set_epoch() or the last new world."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """The loop has trained on these samples."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """This rank's samples of that batch."""
        return self._mine[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Shares out the samples that the epoch has not seen: equally, the last ones filled up by repeating the
        first."""
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            order = torch.randperm(len(left), generator=torch.Generator().manual_seed(self.seed + self.epoch))
            left = [left[position] for position in order.tolist()]
        size, rank = world.current().size, world.current().rank
        each = math.ceil(len(left) / size)
        repeated = left * math.ceil(each * size / len(left)) if left else []
        self._mine = repeated[:each * size][rank::size]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._mine))

    def __len__(self) -> int:
        return len(self._mine)


class _StateDictHandler:
    """Handles a model or an optimizer. Its subclasses say how rank 0's state gets to all."""

    def __init__(self, value: Any):
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy, since an optimizer goes on working in the given tensors.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.broadcast()
        self.save()

    def broadcast(self) -> None:
        raise NotImplementedError


class _ModelHandler(_StateDictHandler):
    def broadcast(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class _OptimizerHandler(_StateDictHandler):
    def broadcast(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class _SamplerHandler:
    def __init__(self, sampler: ElasticSampler):
        self.value = sampler
        self.save()

    def save(self) -> None:
        self._saved = self.value.state_dict()

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Samples that any rank has seen in rank 0's epoch count as seen."""
        everyone = allgather_object(self.value.state_dict(), name="elastic.sampler")
        epoch = everyone[0]["epoch"]
        seen = {index for one in everyone if one["epoch"] == epoch for index in one["processed_indices"]}
        self.value.load_state_dict({"epoch": epoch, "processed_indices": sorted(seen)})
        self.save()


_HANDLERS = ((torch.nn.Module, _ModelHandler), (torch.optim.Optimizer, _OptimizerHandler),
             (ElasticSampler, _SamplerHandler))


class TorchState(ObjectState):
    """The state of a PyTorch loop::

        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    Args:
        model, optimizer: saved by their state_dict(); None: there is none.
        kwargs: further modules, optimizers and ElasticSamplers, and values of plain data. All become attributes; one
            that is assigned another object is kept as that.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
                 **kwargs: Any):
        things = {"model": model, "optimizer": optimizer, **kwargs}
        self._handlers = {name: kind(value) for name, value in things.items() if value is not None
                          for of, kind in _HANDLERS if isinstance(value, of)}
        for name, handler in self._handlers.items():
            setattr(self, name, handler.value)
        plain = {name: value for name, value in things.items()
                 if name not in self._handlers and not (name in ("model", "optimizer") and value is None)}
        super().__init__(**plain)

    def save(self) -> None:
        for handler in self._each():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._each():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._each():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Samplers share out anew to as many ranks as there are now."""
        for handler in self._each():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def _each(self) -> list[Any]:
        for name, handler in self._handlers.items():
            handler.value = getattr(self, name)
        return list(self._handlers.values())
