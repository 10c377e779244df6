"""The textbook Horovod script for PyTorch, a CNN on Fashion-MNIST; its import line is all that differs.

    torchrun --nproc-per-node 2 examples/python/horovod_torch.py
    mpirun -n 2 python examples/python/horovod_torch.py
"""

import argparse

import bimetal.horovod.torch as hvd  # was: import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from data import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=60000)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
parser.add_argument("--lr", type=float, default=0.02, help="of one rank; multiplied by their number")
parser.add_argument("--fp16-allreduce", action="store_true")
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

dataset = fashion_mnist(args.samples)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                      nn.Flatten(), nn.Linear(16 * 6 * 6, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {mean:.4f} over {hvd.size()} ranks")
