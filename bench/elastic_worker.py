"""One worker of an elastic job of others' for elastic.py: `torchrun` goes on from a checkpoint, `hvd` from hvd.elastic's last commit.

A worker writes a line for each step that counts: time.monotonic(), how many took part, and the step's number.
"""

import argparse
import os
import pathlib
import time

from torchft_worker import make_model


def prepared(options):
    """Model, optimizer and what makes a step's loss by a model."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_model(options.hidden)
    images, labels = torch.rand(1024, 784), torch.randint(0, 10, (1024,))

    def loss_by(compute):
        chosen = torch.randint(0, len(images), (options.batch,))
        return torch.nn.functional.cross_entropy(compute(images[chosen]), labels[chosen])
    return model, torch.optim.Adam(model.parameters(), lr=1e-4), loss_by


def train_from_checkpoint(options):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model, optimizer, loss_by = prepared(options)
    step = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    with open(options.commits, "a", buffering=1) as commits:
        while True:
            optimizer.zero_grad()
            loss_by(ddp).backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0 and step % options.every == 0:
                part = options.checkpoint.with_suffix(".part")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
                os.replace(part, options.checkpoint)
            commits.write(f"{time.monotonic()} {dist.get_world_size()} {step}\n")


def train_from_commit(options):
    import bimetal.horovod.torch as hvd

    hvd.init()
    model, optimizer, loss_by = prepared(options)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    with open(options.commits, "a", buffering=1) as commits:
        @hvd.elastic.run
        def train(state):
            while True:
                optimizer.zero_grad()
                loss_by(model).backward()
                optimizer.step()
                state.step += 1
                commits.write(f"{time.monotonic()} {hvd.size()} {state.step}\n")
                if state.step % options.every == 0:
                    state.commit()
        train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=["torchrun", "hvd"])
    parser.add_argument("--commits", help="the file of steps that count")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="of all workers (torchrun)")
    parser.add_argument("--every", type=int, help="steps between checkpoints, or commits")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--batch", type=int, help="samples of this worker's step")
    options = parser.parse_args()
    {"torchrun": train_from_checkpoint, "hvd": train_from_commit}[options.side](options)


if __name__ == "__main__":
    main()
