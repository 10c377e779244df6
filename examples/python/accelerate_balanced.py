"""Hugging Face Accelerate with batches that follow each rank's speed; one line is Bimetal's, `balanced(...)`, and its import.

    pip install accelerate
    torchrun --nproc-per-node 2 examples/python/accelerate_balanced.py --cpu
"""

import argparse

import torch
from accelerate import Accelerator
from bimetal.hf import balanced
from torch import nn
from torch.utils.data import DataLoader
from data import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
parser.add_argument("--mixed-precision", choices=["no", "bf16", "fp16"], default="no")
parser.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
args = parser.parse_args()

accelerator = balanced(Accelerator)(cpu=args.cpu, gradient_accumulation_steps=args.accumulate,
                                    mixed_precision=args.mixed_precision)
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                      nn.Flatten(), nn.Linear(16 * 6 * 6, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(fashion_mnist(args.samples), batch_size=128, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(args.epochs):
    for images, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    shares = accelerator.sampler.shares if accelerator.sampler else "all of one process"
    accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, shares {shares}")

accelerator.end_training()
