"""PyTorch Lightning on unequal machines, by one line (docs/python.md, "Accelerate and Lightning")::

    trainer = lightning.Trainer(strategy=bimetal.lightning.BalancedStrategy(), …)

after ``import bimetal.lightning``. Modules, loaders, accumulation, precision and callbacks stay as they are.
"""

# Annotations are not postponed: DDP looks at a hook's.
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

try:
    from lightning.pytorch.strategies import DDPStrategy
except ImportError as missing:
    raise ImportError(f"bimetal.lightning needs Lightning, which cannot be imported here ({missing}): pip install lightning") from missing

from bimetal.balance import BalancedBatchSampler, sample_exact_hook, token_exact_hook
from bimetal.balance.loader import balanced_loader, is_for_training, refuse_unknown_options

__all__ = ["BalancedStrategy"]


class BalancedStrategy(DDPStrategy):
    """DDP on backend bimetal whose ranks get as much of every batch as they finish in the same time.

    A global batch has the loader's ``batch_size`` times ranks samples. With the Trainer's ``accumulate_grad_batches`` each
    batch counts by its part of the step, an epoch's last step included. Loaders for validation and tests are Lightning's.
    Checkpoints keep the sampler's place, in the midst of an epoch, too.

    Args:
        sampler_options: for the BalancedBatchSampler: ``balance``, ``weights``, ``seed``, ``lengths``.
        token_means: the loss is a mean over tokens, and ``training_step`` calls
            ``self.trainer.strategy.sampler.count_tokens(labels, shifted=…)``.
        of_ddp: for DDPStrategy and torch's DistributedDataParallel.

    Attributes:
        sampler: from the first epoch on.
    """

    def __init__(self, sampler_options: dict[str, Any] | None = None, token_means: bool = False, **of_ddp: Any) -> None:
        super().__init__(**{"process_group_backend": "bimetal", **of_ddp})
        self.sampler: BalancedBatchSampler | None = None
        self._options = sampler_options or {}
        refuse_unknown_options(self._options, "BalancedStrategy's sampler_options")
        self._hook = token_exact_hook if token_means else sample_exact_hook
        self._accumulate = 1
        self._dataset: object = None

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.model.register_comm_hook(self, _hook)

    def process_dataloader(self, dataloader: object) -> object:
        """Lightning calls it for every loader. Those to train with shuffle: it has seen to that."""
        dataloader = super().process_dataloader(dataloader)
        if not isinstance(dataloader, DataLoader) or not is_for_training(dataloader):
            return dataloader
        if self.sampler is not None and dataloader.dataset is not self._dataset:
            raise ValueError("BalancedStrategy balances one DataLoader, the one to train with: others, as for validation, must "
                             "not shuffle")
        self._dataset = dataloader.dataset
        trainer = self.lightning_module.trainer
        self._accumulate = trainer.accumulate_grad_batches
        balanced = balanced_loader(dataloader, _Loader, accumulate=self._accumulate, **self._options)
        self.sampler = balanced.batch_sampler
        self.sampler.set_epoch(trainer.current_epoch)
        return balanced

    def backward(self, closure_loss: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if self._accumulate > 1:
            assert self.sampler is not None
            closure_loss = self.sampler.weigh(closure_loss)
        return super().backward(closure_loss, *arguments, **options)


class _Loader(DataLoader):
    """Lightning puts the state of a loader that has one into its checkpoints, and brings it before it iterates."""

    def state_dict(self) -> dict[str, int]:
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch_sampler.load_state_dict(state)


def _hook(strategy: BalancedStrategy, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if strategy.sampler is None:  # loaders are made after the model
        raise RuntimeError("BalancedStrategy has no DataLoader to train with: it needs one of torch's, with a batch_size, that "
                           "shuffles")
    return strategy._hook(strategy.sampler, bucket)
