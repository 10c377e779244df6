"""A Hugging Face model whose matrices are in parts on several devices, each with whole heads and columns as it is fast: an ordinary
training loop in which one line hands the model over.

    pip install transformers
    bimetal launch -n 2 examples/python/tensor_parts.py --weights 3 1          # or torchrun
"""

import argparse
import pathlib

import bimetal
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

BYTES, LENGTH = 256, 64


def blocks_of(path):
    """Bytes of a text, so many at a time, each to be told from those before."""
    text = torch.tensor(list(path.read_bytes()))
    rows = text[:len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    return [{"input_ids": row, "labels": row} for row in rows]


parser = argparse.ArgumentParser()
parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "LICENSE")
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--weights", type=float, nargs="*", help="how large the ranks' parts are; by speed if not said")
parser.add_argument("--out", type=pathlib.Path, help="a folder for the model, as from_pretrained() takes it")
given = parser.parse_args()

dist.init_process_group("bimetal")
torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=BYTES, n_positions=LENGTH, n_embd=64, n_layer=given.layers, n_head=4,
                                   bos_token_id=None, eos_token_id=None))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
# The same batches on every rank: each computes its part of every sample.
loader = DataLoader(blocks_of(given.text), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2))

parted = bimetal.tensor.parts(model, optimizer, weights=given.weights or "speed")
print(f"rank {dist.get_rank()}: {parted}")
for epoch in range(given.epochs):
    total = 0.0
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        parted.clip_grad_norm_(1.0)  # torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    print(f"rank {dist.get_rank()}: epoch {epoch}, loss {total / len(loader):.3f}")
weights = parted.state_dict()  # whole, on rank 0
if given.out and dist.get_rank() == 0:
    model.save_pretrained(given.out, state_dict=weights)
dist.destroy_process_group()
