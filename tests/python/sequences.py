"""Sequences of unequal length, causal models, and their training with a sampler, for the tests of token means."""

import contextlib

import models
import torch
from torch import nn
from torch.utils.data import DataLoader

import bimetal

SAMPLES, BATCH, EPOCHS = 75, 32, 2  # 3 steps an epoch, the last one of 11 samples
LONGEST, NO_LABEL = 16, -100


def sequences():
    """Of 2 to 16 tokens; some have labels for their end only, one in eight none at all."""
    generator = torch.Generator().manual_seed(3)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    made = []
    for index in range(SAMPLES):
        ids = torch.randint(0, 64, (draw(2, LONGEST + 1),), generator=generator)
        labels = ids.clone()
        labels[:len(ids) if index % 8 == 0 else draw(0, len(ids))] = NO_LABEL
        made.append((index, ids, labels))
    return made


def padded(samples):
    """(indices, ids, labels), filled up with 0 and no label."""
    indices, ids, labels = zip(*samples, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return torch.tensor(indices), pad(ids, batch_first=True), pad(labels, batch_first=True, padding_value=NO_LABEL)


def lengths():
    return [len(ids) for _, ids, _ in sequences()]


class CausalModel(nn.Module):
    """A model of logits with the loss of Hugging Face's: the mean, or the sum divided by `num_items_in_batch`."""

    def __init__(self, logits_of):
        super().__init__()
        self.logits_of = logits_of

    def forward(self, ids, labels, num_items_in_batch=None):
        logits = self.logits_of(ids)
        logits = getattr(logits, "logits", logits)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=NO_LABEL,
                                           reduction="sum" if num_items_in_batch else "mean")
        return loss / num_items_in_batch if num_items_in_batch else loss


def gpt(kind):
    torch.manual_seed(0)
    if kind == "own":
        return CausalModel(models.Gpt()).double()
    import transformers
    config = transformers.GPT2Config(vocab_size=64, n_positions=LONGEST, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0,
                                     embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None)
    return CausalModel(transformers.GPT2LMHeadModel(config)).double()


def train(model, sampler, micro_batch=None, after_backward=lambda: None):
    """Parameters after training, the samples of each epoch, and (samples of all ranks, tokens here) of every step."""
    loader = DataLoader(sequences(), batch_sampler=sampler, collate_fn=padded)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, steps = [], []
    for _ in range(EPOCHS):
        seen.append([])
        for indices, ids, labels in loader:
            tokens = sampler.count_tokens(labels, shifted=True)
            steps.append([sampler.counts, tokens])
            if sampler.weight > 0:
                seen[-1] += indices.tolist()
            optimizer.zero_grad()
            if micro_batch:
                in_micro_batches(model, ids, labels, tokens, micro_batch)
            else:
                model(ids, labels).backward()
            after_backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()], seen, steps


def in_micro_batches(model, ids, labels, tokens, size):
    """One batch of the sampler piece by piece: only the last backward exchanges gradients."""
    starts = range(0, len(ids), size)
    for start in starts:
        last = start == starts[-1]
        with contextlib.nullcontext() if last else model.no_sync():
            model(ids[start:start + size], labels[start:start + size], num_items_in_batch=tokens).backward()


def alone(kind):
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=9)
    return train(gpt(kind), sampler, after_backward=lambda: sampler.finish_step(0.01))
