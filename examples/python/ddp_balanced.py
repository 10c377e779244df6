"""A CNN on Fashion-MNIST by torch's DDP: torchrun --nproc-per-node 2 SCRIPT. ddp_plain.py and ddp_balanced.py
differ in six lines: the latter is for machines of unlike speed."""

import argparse

import bimetal
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from data import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

dist.init_process_group("bimetal")
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                      nn.Flatten(), nn.Linear(16 * 6 * 6, 10))
model = DDP(model)
dataset = fashion_mnist(args.samples)
sampler = bimetal.BalancedBatchSampler(dataset, global_batch=256)
loader = DataLoader(dataset, batch_sampler=sampler)
model.register_comm_hook(sampler, bimetal.sample_exact_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")

dist.destroy_process_group()
