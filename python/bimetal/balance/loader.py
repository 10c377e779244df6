"""A DataLoader of a program's own with the batches of a BalancedBatchSampler: shared by the front ends for Accelerate
and Lightning."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler

from bimetal.balance.sampler import BalancedBatchSampler

_OPTIONS = ("balance", "group", "lengths", "seed", "shuffle", "weights")
_KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
         "prefetch_factor", "persistent_workers")


def is_for_training(loader: DataLoader) -> bool:
    """Whether it shuffles, by its own sampler or by torch's DistributedSampler; others are for evaluation."""
    return bool(getattr(loader.sampler, "shuffle", isinstance(loader.sampler, RandomSampler)))


def refuse_unknown_options(options: dict[str, Any], name: str) -> None:
    """Raises ValueError for options of the sampler that the loader says, or nobody knows. `name`: the call that the
    user gave them to."""
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"{name} has {', '.join(unknown)}: what it takes is {', '.join(_OPTIONS)}. Batches, and how many are drawn "
                         "ahead, follow from the DataLoader and its workers")


def balanced_loader(loader: DataLoader, kind: type[DataLoader] = DataLoader, *, ahead: int = 0, accumulate: int = 1,
                    more: dict[str, Any] | None = None, **options: Any) -> DataLoader:
    """Its dataset in global batches of ``batch_size`` times ranks samples, with a share of each for every rank.

    Args:
        loader: made by ``DataLoader(dataset, batch_size=…, shuffle=True)``, of this rank alone.
        kind: of the new one.
        ahead: batches that its user draws beyond those of its workers.
        accumulate, options: for the BalancedBatchSampler, which is the new one's ``batch_sampler``.
        more: further arguments for ``kind``.

    Raises:
        ValueError: where the batches are made by a sampler of the program's own, or the dataset has no length.
    """
    if loader.batch_size is None or not hasattr(loader.dataset, "__len__"):
        raise ValueError("balanced batches need a DataLoader with a batch_size, over a dataset with a length")
    own = loader.sampler
    if loader.drop_last or (isinstance(own, RandomSampler) and (own.replacement or own.num_samples != len(loader.dataset))):
        raise ValueError("balanced batches have every sample once: leave out drop_last, and RandomSampler's replacement and "
                         "num_samples")
    workers = loader.num_workers
    sampler = BalancedBatchSampler(loader.dataset, loader.batch_size * dist.get_world_size(), accumulate=accumulate,
                                   prefetch=ahead + workers * (loader.prefetch_factor or 2), **options)
    kept = {name: getattr(loader, name) for name in _KEPT}
    return kind(loader.dataset, batch_sampler=sampler, **kept, **(more or {}))
