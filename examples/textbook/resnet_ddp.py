"""ResNet-18 under DDP: DistributedSampler, a cosine schedule, a checkpoint by rank 0, accuracy over all ranks.

    torchrun --nproc-per-node 2 examples/textbook/resnet_ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from images import fashion_mnist
from resnet import resnet18


def accuracy(model, dataset, device):
    """The accuracy over all ranks, each of which looks at its part."""
    sampler = DistributedSampler(dataset, shuffle=False)
    right = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for images, labels in DataLoader(dataset, batch_size=256, sampler=sampler):
            found = model(images.to(device)).argmax(1)
            right += torch.tensor([(found == labels.to(device)).sum(), len(labels)], device=device)
    model.train()
    dist.all_reduce(right)
    return (right[0] / right[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--checkpoint", default="resnet18.pt")
    args = parser.parse_args()

    dist.init_process_group("bimetal")  # was: "gloo"
    rank = dist.get_rank()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)

    torch.manual_seed(1)
    model = DDP(resnet18(args.width).to(device))
    dataset = fashion_mnist(args.samples)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        scheduler.step()
        dist.all_reduce(loss.detach_(), op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, next rate {scheduler.get_last_lr()[0]:.4f}", flush=True)
            torch.save(model.module.state_dict(), args.checkpoint)

    dist.barrier()  # until it is saved
    model.module.load_state_dict(torch.load(args.checkpoint, map_location=device, weights_only=True))
    right = accuracy(model.module, fashion_mnist(args.samples, test=True), device)
    if rank == 0:
        print(f"accuracy {right:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
