"""ResNet-18 whose blocks are computed again in backward, so that their activations need not be kept; under DDP.

    torchrun --nproc-per-node 2 examples/textbook/resnet_checkpointed.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from images import fashion_mnist
from resnet import resnet18


class CheckpointedResNet(nn.Module):
    def __init__(self, width, checkpointed):
        super().__init__()
        # BatchNorm's running means move twice, in forward and again in backward: each time the square root of the way.
        self.net = resnet18(width, momentum=1 - (1 - 0.1) ** 0.5 if checkpointed else 0.1)
        self.checkpointed = checkpointed

    def forward(self, x):
        for part in self.net:
            x = checkpoint(part, x, use_reentrant=False) if self.checkpointed else part(x)
        return x


class KeptBytes(torch.autograd.graph.saved_tensors_hooks):
    """The bytes that autograd keeps from forward to backward."""

    def __init__(self):
        self.bytes = 0
        super().__init__(self.keep, lambda tensor: tensor)

    def keep(self, tensor):
        self.bytes += tensor.nbytes
        return tensor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--plain", action="store_true", help="keep all activations")
    args = parser.parse_args()

    dist.init_process_group("bimetal")  # was: "gloo"
    torch.manual_seed(1)
    model = DDP(CheckpointedResNet(args.width, not args.plain))
    dataset = fashion_mnist(args.samples)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            kept = KeptBytes()
            with kept:
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.6f}, kept for backward {kept.bytes / 2**20:.2f} MiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
