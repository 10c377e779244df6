"""Hugging Face Accelerate on backend bimetal, with batches that follow each rank's speed.

    pip install accelerate
    torchrun --nproc-per-node 2 examples/python/accelerate_balanced.py --cpu
"""

import argparse

import bimetal
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from data import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
args = parser.parse_args()

torch.distributed.init_process_group("bimetal")  # Accelerate takes the group that it finds
accelerator = Accelerator(cpu=args.cpu)
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                      nn.Flatten(), nn.Linear(16 * 6 * 6, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
dataset = fashion_mnist(args.samples)
sampler = bimetal.BalancedBatchSampler(dataset, global_batch=256)
# Not prepared: the sampler has shared out the batches already, and Accelerate would do so once more.
loader = DataLoader(dataset, batch_sampler=sampler)
model, optimizer = accelerator.prepare(model, optimizer)
model.register_comm_hook(sampler, bimetal.sample_exact_hook)

for epoch in range(args.epochs):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(accelerator.device)), labels.to(accelerator.device))
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, shares {sampler.shares}")

accelerator.end_training()
