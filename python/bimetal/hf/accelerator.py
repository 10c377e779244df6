"""An Accelerator for ranks with unequal work."""

# Annotations are not postponed: DDP looks at a hook's.
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bimetal.balance import BalancedBatchSampler, sample_exact_hook, token_exact_hook
from bimetal.balance.loader import balanced_loader, is_for_training, refuse_unknown_options
from bimetal.hf.ranks import all_ranks_counted, refuse_to_train_alone


class BalancedAccelerator:
    """To stand before accelerate.Accelerator in a class's bases; ``balanced(Accelerator)`` does that.

    ``prepare`` deals out the batches of a DataLoader that shuffles by the ranks' speed: a global batch has ``batch_size``
    times ranks samples. Loaders that do not shuffle, for evaluation, are Accelerate's. ``backward`` makes each batch count
    by its part of a step, accumulated ones too, an epoch's last step included. Mixed precision and clipping are
    Accelerate's. Without a process group it makes one of backend bimetal where a launcher has started ranks; one process
    alone is as ever. Ranks without CUDA compute on the CPU, or on MPS where the machine has it and ``cpu=True`` is not given.
    ``save_state`` keeps the sampler's place, ``load_state`` goes on there.

    Attributes:
        sampler: the BalancedBatchSampler, once a loader is prepared; None for one process alone.
        sampler_options: for it, to be set before ``prepare``: ``balance``, ``weights``, ``seed``, ``lengths``.
        token_means: to be set before ``prepare``: the loss is a mean over tokens, and before each ``backward`` the loop calls
            ``accelerator.sampler.count_tokens(labels, shifted=…)``.
    """

    sampler: BalancedBatchSampler | None = None
    token_means = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("bimetal")  # Accelerate takes the group that it finds
        with all_ranks_counted():
            super().__init__(*arguments, **options)
        refuse_to_train_alone(self.num_processes)
        self.sampler_options: dict[str, Any] = {}

    def prepare_data_loader(self, data_loader: DataLoader, *arguments: Any, **others: Any) -> DataLoader:
        """Raises ValueError for a second one that shuffles."""
        if self.num_processes == 1 or getattr(data_loader, "_is_accelerate_prepared", False) or not is_for_training(data_loader):
            return super().prepare_data_loader(data_loader, *arguments, **others)
        if self.sampler is not None:
            raise ValueError("a balanced Accelerator has one DataLoader that shuffles, to train with; this is the second")
        refuse_unknown_options(self.sampler_options, "accelerator.sampler_options")
        options = {"seed": _common_seed(), **self.sampler_options}
        # It looks one batch ahead to see an epoch's end, at which accumulation ends, too.
        loader = balanced_loader(
            data_loader, _loader_kind(), ahead=1, accumulate=self.gradient_accumulation_steps,
            more={"device": self.device if self.device_placement else None}, **options)
        loader._is_accelerate_prepared = True
        self._dataloaders.append(loader)
        self.sampler = loader.batch_sampler
        self.register_for_checkpointing(self.sampler)
        return loader

    def skip_first_batches(self, dataloader: DataLoader, num_batches: int = 0) -> DataLoader:
        """The loader, whose next iteration begins after so many batches of its epoch; after ``load_state`` that is the place
        that was loaded."""
        if self.sampler is None or dataloader.batch_sampler is not self.sampler:
            return super().skip_first_batches(dataloader, num_batches)
        self.sampler.set_epoch(self.sampler.next_epoch, batches=num_batches)
        return dataloader

    def prepare_model(self, model: torch.nn.Module, *arguments: Any, **options: Any) -> torch.nn.Module:
        prepared = super().prepare_model(model, *arguments, **options)
        if isinstance(prepared, DistributedDataParallel) and prepared is not model:
            prepared.register_comm_hook(self, _token_hook if self.token_means else _sample_hook)
        return prepared

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        if self.sampler is not None and self.gradient_accumulation_steps > 1:
            loss = self.sampler.weigh(loss)
        super().backward(loss, **options)


def _common_seed() -> int:
    """The seed of ``accelerate.utils.set_seed`` on rank 0, as the order of samples is the same on all ranks."""
    seed = [torch.initial_seed()]
    dist.broadcast_object_list(seed)
    return seed[0]


def _loader_kind() -> type[DataLoader]:
    from accelerate.data_loader import DataLoaderShard

    class BalancedShard(DataLoaderShard):
        """Accelerate's own, which counts epochs from 0 and sets them: here the sampler says which one begins."""

        def __iter__(self) -> Any:
            self.iteration = self.batch_sampler.next_epoch
            return super().__iter__()

    return BalancedShard


def _sample_hook(accelerator: BalancedAccelerator, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return sample_exact_hook(_sampler_of(accelerator), bucket)


def _token_hook(accelerator: BalancedAccelerator, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return token_exact_hook(_sampler_of(accelerator), bucket)


def _sampler_of(accelerator: BalancedAccelerator) -> BalancedBatchSampler:
    if accelerator.sampler is None:  # the loader may be prepared after the model
        raise RuntimeError("the DataLoader to train with was not prepared: accelerator.prepare(model, optimizer, loader), and "
                           "it has to shuffle")
    return accelerator.sampler
