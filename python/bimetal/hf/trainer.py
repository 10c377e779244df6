"""A Trainer for ranks with unequal work."""

from __future__ import annotations

import contextlib
import copy
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from bimetal.balance import BalancedBatchSampler, token_exact_hook
from bimetal.balance.loader import refuse_unknown_options
from bimetal.hf.loss_kind import Weight, find_loss_kind, on_all_ranks, samples_to_try, with_some_label
from bimetal.hf.ranks import all_ranks_counted, refuse_to_train_alone

_MASK = "attention_mask"


class Pieces(dict[str, torch.Tensor]):
    """The object that the Trainer takes for one batch. As a mapping it has all tokens, and their mask, flat, to count
    them.

    Attributes:
        parts: the collate function's result for each micro-batch.
    """

    def __init__(self, parts: list[dict[str, Any]], tokens: str) -> None:
        found = {name: [part.get(name) for part in parts] for name in (tokens, _MASK)}
        if _are_tensors(found[tokens]) and any(mask is not None for mask in found[_MASK]):  # a part without one is all tokens
            found[_MASK] = [torch.ones_like(part) if mask is None else mask for part, mask in zip(*found.values(), strict=True)]
        super().__init__({name: torch.cat([value.flatten() for value in values]) for name, values in found.items()
                          if _are_tensors(values)})
        self.parts = parts

    def pin_memory(self) -> Pieces:
        """DataLoader asks for it; its own way with mappings would leave out the parts."""
        for tensors in (self, *self.parts):
            tensors.update(pinned({**tensors}))
        return self


def _are_tensors(values: list[Any]) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


class InPieces:
    """A collate function that gives another one at most so many samples at a time, sequences of like lengths together.

    Args:
        collate: makes a dictionary of samples.
        most: samples in a micro-batch, at least 1. There are as few as that allows, of sizes as alike as can be.
        tokens: the name of the sequences in samples, by whose lengths they are put together, the longest first: what does not
            fit in memory is found out before the rest is computed.
    """

    def __init__(self, collate: Callable[[list[Any]], dict[str, Any]], most: int, tokens: str = "input_ids") -> None:
        self._collate, self._most, self._tokens = collate, most, tokens

    def __call__(self, samples: Sequence[Any]) -> Pieces:
        longest_first = sorted(samples, key=self._length, reverse=True)
        count, rows = -(-len(samples) // self._most), len(samples)
        cuts = [rows * number // count for number in range(count + 1)]
        return Pieces([self._collate(longest_first[begin:end]) for begin, end in zip(cuts, cuts[1:], strict=False)], self._tokens)

    def _length(self, sample: Any) -> int:
        sequence = sample.get(self._tokens) if isinstance(sample, Mapping) else None
        return len(sequence) if sequence is not None else 0


_POSITION = "bimetal_sampler.json"


class Balanced:
    """To stand before transformers.Trainer in a class's bases.

    A step has as many samples as the Trainer's would have (``per_device_train_batch_size`` times ranks times
    ``gradient_accumulation_steps``), dealt out by the ranks' speed. Each rank computes its part in micro-batches of at
    most ``per_device_train_batch_size`` samples, of like lengths, each collated by itself, and the gradient is that of the
    mean over all ranks' tokens. Evaluation, logging and saving are the Trainer's; checkpoints also hold where the sampler is.

    The loss may be one that is divided by ``num_items_in_batch``, as that of Hugging Face's causal models or a
    ``compute_loss_func``, or a mean over samples or over labels, as that of classifiers. Which it is, the first step finds out
    by computing it; another one is refused. Models are trained by DDP, or by one process alone. The caller's
    TrainingArguments stay as they are.

    Attributes:
        sampler: the BalancedBatchSampler, from the first step on.
        sampler_options: for it, to be set before training: ``balance``, ``weights``, ``seed``, ``lengths``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        arguments, options = _with_own_arguments(arguments, options)
        super().__init__(*arguments, **options)
        self._refuse_what_is_ignored()
        self.args = copy.copy(self.args)  # where it has made its own
        self.args.average_tokens_across_devices = False  # the hook does that, without another exchange
        self.args.ignore_data_skip = True  # the sampler knows where it was
        self._ranks = dist.get_world_size() if dist.is_initialized() else 1
        refuse_to_train_alone(self.args.world_size)
        self._micro_batch = self.args.per_device_train_batch_size
        self._global_batch = self._micro_batch * self._ranks * self.args.gradient_accumulation_steps
        self.args.gradient_accumulation_steps = 1  # a batch of the sampler is a step
        self.accelerator.gradient_accumulation_steps = 1
        self.sampler: BalancedBatchSampler | None = None
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self.sampler_options: dict[str, Any] = {"seed": seed}
        self._hooked: Any = None
        self._mean_over: Weight | None = None
        self._factor: float | None = None  # of the loss that is computed now
        self._tried = False
        self._position: dict[str, int] | None = None

    def _refuse_what_is_ignored(self) -> None:
        args = self.args
        if args.dataloader_drop_last:
            raise ValueError("a balanced Trainer has every sample once, and a last batch that is short: leave out "
                             "dataloader_drop_last")
        if getattr(args, "train_sampling_strategy", "random") != "random" or getattr(args, "group_by_length", False):
            raise ValueError("a balanced Trainer draws samples at random, and computes those of like lengths together in each "
                             "step: leave out train_sampling_strategy and group_by_length")
        if args.auto_find_batch_size:
            raise ValueError("a balanced Trainer has one batch on all ranks, so that no rank can find its own: leave out "
                             "auto_find_batch_size, and set per_device_train_batch_size to what the smallest device has room for")

    def get_train_dataloader(self) -> DataLoader:
        """Not prepared by Accelerate, which would share out the batches once more."""
        if not isinstance(self.train_dataset, Sized) or isinstance(self.train_dataset, IterableDataset):
            raise ValueError("a balanced Trainer needs a train_dataset with a length, whose samples have numbers: of one that is "
                             "streamed no rank could take its share")
        refuse_unknown_options(self.sampler_options, "trainer.sampler_options")
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
        self._dataset, self._collate = dataset, collate
        pieces = InPieces(collate, self._micro_batch, getattr(self.model, "main_input_name", "input_ids"))
        of_workers = {name: getattr(self.args, f"dataloader_{name}") for name in ("prefetch_factor", "persistent_workers")}
        return DataLoader(dataset, batch_sampler=self.sampler, collate_fn=pieces, num_workers=workers,
                          pin_memory=self.args.dataloader_pin_memory, **(of_workers if workers else {}))

    def get_batch_samples(self, epoch_iterator: Iterator[Pieces], num_batches: int, *device: Any) -> tuple[list[Pieces], Any]:
        """The one batch of a step, and the number that divides all of its micro-batches' losses."""
        batch = next(epoch_iterator, None)
        if batch is None:
            return super().get_batch_samples(iter(()), num_batches, *device)
        _, items = super().get_batch_samples(iter(batch.parts), len(batch.parts), *device)
        return [batch], items

    def get_total_train_batch_size(self, args: Any) -> int:
        return self._global_batch

    def training_step(self, model: torch.nn.Module, inputs: Pieces,
                      num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss of the rank's whole part. The Trainer logs its mean over ranks: the loss over all their tokens."""
        assert self.sampler is not None
        if not self._tried:
            self._try_loss()
        items, factors = self._items(inputs.parts, num_items_in_batch)
        distributed = isinstance(model, DistributedDataParallel)
        if distributed:
            if self._hooked is not model:
                model.register_comm_hook(self, _hook)
                self._hooked = model
            self.sampler.set_tokens(int(items))
            mine = self.sampler.tokens
        divisor = torch.as_tensor(items).clamp(min=1)
        losses, self.sampler.all_tokens = [], None
        for number, (piece, self._factor) in enumerate(zip(inputs.parts, factors, strict=True)):
            last = number == len(inputs.parts) - 1
            if self._factor == 0:
                piece = with_some_label(piece)
            with contextlib.nullcontext() if last or not distributed else model.no_sync(), self._by_itself():
                losses.append(super().training_step(model, piece, divisor))
        self._factor = None
        loss = torch.stack(losses).sum()  # over this rank's tokens
        if not distributed:
            self.sampler.finish_step()
            return loss
        if self.sampler.all_tokens is None:
            raise RuntimeError("the gradients of this step have not been summed over the ranks: compute_loss is to call the model that "
                               "it is given, not one that it has kept, nor another method than forward; and what is trained when "
                               "train() begins is not to be frozen later")
        total = self.sampler.all_tokens.wait()[0].squeeze()  # the last backward has waited for it
        return loss * (mine * self._ranks) / total.clamp(min=1)

    def compute_loss(self, model: torch.nn.Module, inputs: Any, *arguments: Any, **options: Any) -> Any:
        result = super().compute_loss(model, inputs, *arguments, **options)
        if self._factor is None:
            return result
        return (result[0] * self._factor, *result[1:]) if isinstance(result, tuple) else result * self._factor

    def _items(self, parts: list[Any], num_items_in_batch: Any) -> tuple[Any, list[float | None]]:
        """The weight of this rank's gradients, and the factor of each micro-batch's loss."""
        if self._mean_over is None:
            return num_items_in_batch, [None] * len(parts)
        weights = [self._mean_over(part) for part in parts]
        total = sum(weights)
        return total, [weight / max(total, 1) if weight else 0.0 for weight in weights]

    def _try_loss(self) -> None:
        """Finds out how the loss is to be weighed."""
        model = self.accelerator.unwrap_model(self.model)

        def loss_of(some: Any, items: Any) -> torch.Tensor:
            with self._by_itself():  # without autocast, whose rounding would hide small differences
                return super(Balanced, self).compute_loss(model, {**some}, num_items_in_batch=items)

        def find() -> Weight | None:
            divides = bool(self.model_accepts_loss_kwargs or self.compute_loss_func)
            return find_loss_kind(model, self._prepare_inputs(samples_to_try(self._dataset, self._collate)), loss_of, divides)

        with torch.random.fork_rng():
            self._mean_over = on_all_ranks(find)
        self._tried = True

    @contextlib.contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Ranks have unlike numbers of micro-batches, so that nothing in one may wait for the others. Figures that
        SFTTrainer gathers in them for its log (entropy, accuracy, tokens) are then this rank's alone."""
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


def _hook(trainer, bucket):  # DDP reads a hook's annotations, which are postponed here
    return token_exact_hook(trainer.sampler, bucket)  # each call of train() has a sampler of its own


def _with_own_arguments(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same with a copy of the TrainingArguments, in which the ranks of the process group are counted."""
    position = 1
    args = options.get("args", arguments[position] if len(arguments) > position else None)
    if args is None:
        return arguments, options
    own = copy.copy(args)
    world = dist.get_world_size() if dist.is_initialized() else 1
    if own.world_size != world:
        for name in ("_setup_devices", "__cached__setup_devices"):
            own.__dict__.pop(name, None)
        with all_ranks_counted():
            own.device  # noqa: B018 - found out anew, and kept
    if "args" in options:
        return arguments, {**options, "args": own}
    return (*arguments[:position], own, *arguments[position + 1:]), options
