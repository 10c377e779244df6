"""PyTorch Lightning with batches that follow each rank's speed; one line is Bimetal's, the strategy, and its import.

    pip install lightning
    python examples/python/lightning_balanced.py --devices 2
"""

import argparse

import lightning
import torch
from bimetal.lightning import BalancedStrategy
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--precision", default="32-true", help="such as bf16-mixed")
    parser.add_argument("--devices", type=int, default=2)
    args = parser.parse_args()
    lightning.seed_everything(1, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=args.devices, strategy=BalancedStrategy(), max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate, precision=args.precision,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(), DataLoader(fashion_mnist(args.samples), batch_size=128, shuffle=True))


if __name__ == "__main__":
    main()
