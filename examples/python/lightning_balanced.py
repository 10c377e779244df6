"""PyTorch Lightning on backend bimetal, with batches that follow each rank's speed.

    pip install lightning
    python examples/python/lightning_balanced.py --devices 2
"""

import argparse

import bimetal
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from data import fashion_mnist


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                                   nn.Flatten(), nn.Linear(16 * 6 * 6, 10))

    def training_step(self, batch, _):
        images, labels = batch
        self.loss = nn.functional.cross_entropy(self.model(images), labels)
        return self.loss

    def on_train_epoch_end(self):
        self.print(f"epoch {self.current_epoch}: loss {self.loss.item():.4f}, "
                   f"shares {self.trainer.strategy.sampler.shares}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class BalancedStrategy(DDPStrategy):
    """DDP on backend bimetal whose gradients are exact for the sampler's unequal batches."""

    def __init__(self, samples, global_batch):
        super().__init__(process_group_backend="bimetal")
        self.samples, self.global_batch = samples, global_batch

    def setup_environment(self):
        super().setup_environment()  # makes the process group, which the sampler asks for its ranks
        self.sampler = bimetal.BalancedBatchSampler(self.samples, self.global_batch)

    def configure_ddp(self):
        super().configure_ddp()
        self.model.register_comm_hook(self.sampler, bimetal.sample_exact_hook)


class Images(lightning.LightningDataModule):
    def __init__(self, samples):
        super().__init__()
        self.dataset = fashion_mnist(samples)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_sampler=self.trainer.strategy.sampler)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--devices", type=int, default=2)
    args = parser.parse_args()
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=args.devices, strategy=BalancedStrategy(args.samples, 256), max_epochs=args.epochs,
        use_distributed_sampler=False,  # the sampler has shared out the batches already
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(), Images(args.samples))


if __name__ == "__main__":
    main()
