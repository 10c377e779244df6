"""A CNN on Fashion-MNIST, on whatever workers a Ray cluster has, each at its own speed.

    python -m bimetal.ray up                                        # in another terminal
    python examples/python/ray_trainer.py --worker cpu              # or: --worker cuda --worker mps
"""

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import bimetal
import bimetal.ray
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import fashion_mnist


def train(config):
    """Runs on every worker; bimetal has made the process group."""
    device = bimetal.device()
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                            nn.Flatten(), nn.Linear(16 * 6 * 6, 10)).to(device)
    model = DDP(network)
    dataset = fashion_mnist(config["samples"])
    sampler = bimetal.BalancedBatchSampler(dataset, global_batch=256)
    loader = DataLoader(dataset, batch_sampler=sampler)
    model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    begin = 0
    if (found := bimetal.ray.get_checkpoint()) is not None:
        state = torch.load(found / "state.pt", weights_only=True)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"] + 1

    for epoch in range(begin, config["epochs"]):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"epoch": epoch, "model": network.state_dict(), "optimizer": optimizer.state_dict()},
                       pathlib.Path(folder) / "state.pt")
            bimetal.ray.report({"epoch": epoch, "loss": loss, "shares": sampler.shares}, checkpoint_dir=folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", action="append", default=[], help="a tag of the cluster's nodes: cuda, mps, cpu")
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--storage", default="runs/ray_trainer", help="folder for checkpoints")
    args = parser.parse_args()
    trainer = bimetal.ray.Trainer(train, args.worker or ["cpu"], storage=args.storage,
                                  config={"samples": args.samples, "epochs": args.epochs})
    result = trainer.fit()
    print(f"loss {result.metrics['loss']:.4f}, {len(result.restarts)} restarts, checkpoint {result.checkpoint}")


if __name__ == "__main__":
    main()
