"""The textbook Horovod script for PyTorch, a CNN on Fashion-MNIST with gradients in float16 on their way and metrics
averaged over the ranks; its import line is all that differs.

    torchrun --nproc-per-node 2 examples/textbook/horovod_torch.py --fp16-allreduce
    mpirun -n 2 python examples/textbook/horovod_torch.py
"""

import argparse

import bimetal.horovod.torch as hvd  # was: import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from images import fashion_mnist

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


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test():
    """Mean loss and accuracy of what was held out, each rank looking at its part."""
    held_out = fashion_mnist(args.samples, test=True)
    part = DistributedSampler(held_out, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    losses, right = 0.0, 0.0
    with torch.no_grad():
        for images, labels in DataLoader(held_out, batch_size=500, sampler=part):
            output, labels = model(images.to(device)), labels.to(device)
            losses += nn.functional.cross_entropy(output, labels, reduction="sum").item()
            right += (output.argmax(1) == labels).sum().item()
    return metric_average(losses / len(part), "avg_loss"), metric_average(right / len(part), "avg_accuracy")


for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    mean = metric_average(loss.item(), "loss")
    test_loss, accuracy = test()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {mean:.4f} over {hvd.size()} ranks, tested {test_loss:.4f}, accuracy {accuracy:.3f}")
