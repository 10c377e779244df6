"""ddp_balanced.py, whose workers may be lost, leave and come while it runs: docs/elastic.md, "In a Python script"."""

import argparse

import bimetal
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from data import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                      nn.Flatten(), nn.Linear(16 * 6 * 6, 10))
dataset = fashion_mnist(args.samples)
sampler = bimetal.BalancedBatchSampler(dataset, global_batch=256)
loader = DataLoader(dataset, batch_sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(state):
    ddp = DDP(model)
    ddp.register_comm_hook(sampler, bimetal.sample_exact_hook)
    for epoch in range(sampler.next_epoch, args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()
            state.commit()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


state = bimetal.elastic.State(model=model, optimizer=optimizer, sampler=sampler)
bimetal.elastic.run(train, state)
dist.destroy_process_group()
