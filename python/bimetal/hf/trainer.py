"""What is different in a Trainer whose ranks have unequal work."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from bimetal.balance import BalancedBatchSampler, token_exact_hook
from bimetal.hf.pieces import InPieces, Pieces

_POSITION = "bimetal_sampler.json"


class Balanced:
    """To stand before transformers.Trainer in a class's bases.

    A step has as many samples as the Trainer's would have (``per_device_train_batch_size`` times ranks times
    ``gradient_accumulation_steps``), dealt out by the ranks' speed. Each rank computes its part in micro-batches of at
    most ``per_device_train_batch_size`` samples, of like lengths, each collated by itself, and the gradient is that of the
    mean over all ranks' tokens. Evaluation, logging and saving are the Trainer's; checkpoints also hold where the sampler is.

    The loss must be one that is divided by ``num_items_in_batch``: that of Hugging Face's causal models, or a
    ``compute_loss_func``. Models are trained by DDP, or by one process alone.

    Attributes:
        sampler: the BalancedBatchSampler, from the first step on.
        sampler_options: for it, to be set before training: ``balance``, ``weights``, ``seed``, ``lengths``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.args.dataloader_drop_last:
            raise ValueError("a balanced Trainer has every sample once, and a last batch that is short: leave out "
                             "dataloader_drop_last")
        self.args.average_tokens_across_devices = False  # the hook does that, without another exchange
        self.args.ignore_data_skip = True  # the sampler knows where it was
        self._ranks = dist.get_world_size() if dist.is_initialized() else 1
        self._micro_batch = self.args.per_device_train_batch_size
        self._global_batch = self._micro_batch * self._ranks * self.args.gradient_accumulation_steps
        self.args.gradient_accumulation_steps = 1  # a batch of the sampler is a step
        self.accelerator.gradient_accumulation_steps = 1
        self.sampler: BalancedBatchSampler | None = None
        self.sampler_options: dict[str, Any] = {"seed": self.args.seed}
        self._hooked: Any = None
        self._position: dict[str, int] | None = None

    def get_train_dataloader(self) -> DataLoader:
        """Not prepared by Accelerate, which would share out the batches once more."""
        if not isinstance(self.train_dataset, Sized) or isinstance(self.train_dataset, IterableDataset):
            raise ValueError("a balanced Trainer needs a train_dataset with a length, whose samples have numbers: of one that is "
                             "streamed no rank could take its share")
        workers = self.args.dataloader_num_workers
        ahead = workers * (self.args.dataloader_prefetch_factor or 2)
        self.sampler = BalancedBatchSampler(self.train_dataset, self._global_batch, prefetch=ahead,
                                            **self.sampler_options)
        if self._position is not None:
            self.sampler.load_state_dict(self._position)
        dataset, collate = self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names"):  # of the library `datasets`
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        pieces = InPieces(collate, self._micro_batch, getattr(self.model, "main_input_name", "input_ids"))
        of_workers = {name: getattr(self.args, f"dataloader_{name}") for name in ("prefetch_factor", "persistent_workers")}
        return DataLoader(dataset, batch_sampler=self.sampler, collate_fn=pieces, num_workers=workers,
                          pin_memory=self.args.dataloader_pin_memory, **(of_workers if workers else {}))

    def get_batch_samples(self, epoch_iterator: Iterator[Pieces], num_batches: int, *device: Any) -> tuple[list[Pieces], Any]:
        """The one batch of a step, and what all of its micro-batches' losses are divided by."""
        batch = next(epoch_iterator, None)
        if batch is None:
            return super().get_batch_samples(iter(()), num_batches, *device)
        _, items = super().get_batch_samples(iter(batch.parts), len(batch.parts), *device)
        return [batch], items

    def get_total_train_batch_size(self, args: Any) -> int:
        return self._global_batch

    def training_step(self, model: torch.nn.Module, inputs: Pieces,
                      num_items_in_batch: Any = None) -> torch.Tensor:
        """Of the rank's whole part. The Trainer logs the mean over ranks of what this gives: the loss over all their tokens."""
        if num_items_in_batch is None:
            raise ValueError("bimetal.hf needs a loss that is divided by num_items_in_batch: this model's is not. Give "
                             "the Trainer a compute_loss_func(outputs, labels, num_items_in_batch)")
        assert self.sampler is not None
        distributed = isinstance(model, DistributedDataParallel)
        if distributed:
            if self._hooked is not model:
                model.register_comm_hook(self.sampler, token_exact_hook)
                self._hooked = model
            self.sampler.set_tokens(int(num_items_in_batch))
            mine = self.sampler.tokens
        divisor = torch.as_tensor(num_items_in_batch).clamp(min=1)
        losses = []
        for number, piece in enumerate(inputs.parts):
            last = number == len(inputs.parts) - 1
            with contextlib.nullcontext() if last or not distributed else model.no_sync(), self._by_itself():
                losses.append(super().training_step(model, piece, divisor))
        loss = torch.stack(losses).sum()  # over this rank's tokens
        if not distributed:
            self.sampler.finish_step()
            return loss
        total = self.sampler.all_tokens.wait()[0].squeeze()  # the last backward has waited for it
        return loss * (mine * self._ranks) / total.clamp(min=1)

    @contextlib.contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Ranks have unlike numbers of micro-batches, so that nothing in one may wait for the others. What SFTTrainer gathers
        in them for its log (entropy, accuracy, tokens) is then of this rank alone."""
        own = {name: (lambda value, *_, **__: value) for name in ("gather", "gather_for_metrics", "reduce")}
        vars(self.accelerator).update(own)  # before the methods of its class
        try:
            yield
        finally:
            for name in own:
                del vars(self.accelerator)[name]

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save and self.sampler is not None:
            folder = pathlib.Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            (folder / _POSITION).write_text(json.dumps(self.sampler.state_dict()))

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> Any:
        self._position = None
        if isinstance(resume_from_checkpoint, bool):
            if resume_from_checkpoint:
                from transformers.trainer_utils import get_last_checkpoint

                resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
            else:
                resume_from_checkpoint = None
        if resume_from_checkpoint is not None:
            path = pathlib.Path(resume_from_checkpoint) / _POSITION
            if not path.exists():
                raise ValueError(f"{resume_from_checkpoint} has no {_POSITION}: it was not made by a balanced Trainer")
            self._position = json.loads(path.read_text())
        return super().train(resume_from_checkpoint, *arguments, **options)
