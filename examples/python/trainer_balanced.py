"""Hugging Face's Trainer on backend bimetal: a small GPT-2 from scratch, on sequences of unequal length, with batches
whose tokens follow each rank's speed and gradients of the mean over all ranks' tokens.

    pip install transformers accelerate
    torchrun --nproc-per-node 2 examples/python/trainer_balanced.py --cpu
"""

import argparse
import random
from dataclasses import dataclass, field

import bimetal
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, LONGEST = 64, 48


class BalancedTrainer(Trainer):
    """One batch of the sampler is one step: no ``gradient_accumulation_steps``."""

    def __init__(self, sampler, args, **more):
        # Each rank's loss is its sum divided by its own tokens; the hook does the rest, without another exchange.
        args.average_tokens_across_devices = False
        super().__init__(args=args, **more)
        self.sampler = sampler
        self.hooked = None  # the model that has the hook

    def get_train_dataloader(self):
        # Not prepared by Accelerate, which would share out the batches once more.
        return DataLoader(self.train_dataset, batch_sampler=self.sampler, collate_fn=self.data_collator,
                          num_workers=self.args.dataloader_num_workers)

    def training_step(self, model, inputs, num_items_in_batch=None):
        if isinstance(model, DistributedDataParallel):
            if self.hooked is not model:
                model.register_comm_hook(self.sampler, bimetal.token_exact_hook)
                self.hooked = model
            self.sampler.set_tokens(num_items_in_batch)  # what the model's loss is divided by
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not isinstance(model, DistributedDataParallel):  # one process
            self.sampler.finish_step()
        return loss


def sequences(count):
    """Numbers that are counted up in steps of 1 to 3: 4 to 48 tokens each."""
    draw = random.Random(1)
    made = []
    for _ in range(count):
        begin, step, length = draw.randrange(VOCABULARY), draw.randint(1, 3), draw.randint(4, LONGEST)
        made.append(torch.tensor([(begin + step * position) % VOCABULARY for position in range(length)]))
    return made


def pad(samples):
    return {"input_ids": pad_sequence(samples, batch_first=True),
            "labels": pad_sequence(samples, batch_first=True, padding_value=-100)}


@dataclass
class Options:
    samples: int = 2000
    global_batch: int = 32
    epochs: int = 2
    lr: float = 0.1
    cpu: bool = False
    balance: str = "auto"
    weights: list[float] = field(default_factory=list)
    workers: int = 0


def make_trainer(options, kind=BalancedTrainer):
    args = TrainingArguments(output_dir="unused", save_strategy="no", use_cpu=options.cpu,
                             num_train_epochs=options.epochs, dataloader_num_workers=options.workers,
                             optim="sgd", learning_rate=options.lr, lr_scheduler_type="constant",
                             logging_strategy="epoch", report_to="none", disable_tqdm=True)
    dataset = sequences(options.samples)
    sampler = bimetal.BalancedBatchSampler(dataset, options.global_batch, lengths=[len(ids) for ids in dataset],
                                           balance=options.balance, weights=options.weights,
                                           prefetch=2 * options.workers)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LONGEST, n_embd=64, n_layer=2, n_head=4,
                                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None,
                                       eos_token_id=None))
    return kind(sampler, args, model=model, train_dataset=dataset, data_collator=pad)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
    given = parser.parse_args()
    torch.distributed.init_process_group("bimetal")  # Trainer takes the group that it finds
    trainer = make_trainer(Options(samples=given.samples, epochs=given.epochs, cpu=given.cpu))
    loss = trainer.train().training_loss
    if torch.distributed.get_rank() == 0:
        print(f"loss {loss:.4f}, tokens of each rank in a batch {trainer.sampler.shares}")
    torch.distributed.destroy_process_group()
