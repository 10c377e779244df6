"""Loops of one's own whose workers come, go and are killed: what they train is what one process trains of the same batches."""

import os
import re
import signal
import sys
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import bimetal

SAMPLES, BATCH, EPOCHS = 203, 16, 3


def data():
    drawn = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 6, generator=drawn, dtype=torch.float64)
    return TensorDataset(torch.arange(SAMPLES), inputs, inputs.sin().sum(1, keepdim=True))


def parts(seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8),
            "sampler": bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=5)}


def train(state, after=lambda state: None, wrap=DistributedDataParallel):
    model = wrap(state.model)
    if wrap is DistributedDataParallel:
        model.register_comm_hook(state.sampler, bimetal.sample_exact_hook)
    while state.sampler.next_epoch < EPOCHS:
        for indices, inputs, targets in DataLoader(data(), batch_sampler=state.sampler):
            loss = nn.functional.mse_loss(model(inputs), targets)
            state.optimizer.zero_grad()
            loss.backward()
            if wrap is not DistributedDataParallel:
                state.sampler.finish_step()
            state.optimizer.step()
            state.scheduler.step()
            # Of one whose share is none it is a batch that counts nothing.
            state.seen = [*state.seen, [dist.get_world_size() if dist.is_initialized() else 1, BATCH]]
            if wrap is DistributedDataParallel:
                state.commit()
            after(state)
    return state


def undisturbed():
    """What one process makes of it."""
    state = bimetal.elastic.State(**parts(), seen=[])
    return train(state, wrap=lambda module: module)


def result(state, **more):
    place = {"world": dist.get_world_size(), "rank": dist.get_rank()}
    dist.destroy_process_group()
    alone = undisturbed()
    pairs = list(zip(state.model.parameters(), alone.model.parameters(), strict=True))
    worst = max(float((mine - his).abs().max() / his.abs().max()) for mine, his in pairs)
    return {"worst": worst, "steps": len(state.seen), "sizes": [size for size, _ in state.seen], **place,
            "lr": state.optimizer.param_groups[0]["lr"] / alone.optimizer.param_groups[0]["lr"], **more}


def say(*words):
    print(*words, flush=True)


def loop(until=0, **how):
    """Trains; each step but the last few waits until the job has been in so many sizes of world."""
    rank = os.environ.get("RANK", "later")
    state = bimetal.elastic.State(**parts(seed=1 if rank == "0" else 7), seen=[])  # what rank 0 has counts

    def after(state):
        say(f"step {len(state.seen)} of {dist.get_world_size()} at {' '.join(bimetal.elastic.doors())}")
        time.sleep(0.02)

    try:
        bimetal.elastic.run(lambda state: train(state, after), state, **how)
    except bimetal.Error as error:
        return {"error": error.code, "text": str(error)}
    return result(state)


def start(count, body=loop, *arguments, **how):
    return ranks.start(count, body, *arguments, backend=None, **how)


def wait_for(job, rank, pattern, seconds=120):
    until = time.monotonic() + seconds
    while not (found := re.search(pattern, job.output(rank))):
        if time.monotonic() > until or job.processes[rank].poll() is not None:
            raise AssertionError(f"{pattern}\n{job.text()}")
        time.sleep(0.01)
    return found


class Elastic(unittest.TestCase):
    def check(self, job, living, sizes, seconds=120):
        until = time.monotonic() + seconds
        results = []
        for rank in living:
            self.assertEqual(job.processes[rank].wait(max(1.0, until - time.monotonic())), 0, job.text())
            results.append(job.value(rank))
        for one in results:
            self.assertNotIn("error", one, one)
            self.assertLess(one["worst"], 1e-12, one)
            self.assertEqual((one["steps"], one["lr"]), (EPOCHS * -(-SAMPLES // BATCH), 1.0))
            self.assertEqual(list(dict.fromkeys(one["sizes"])), sizes)
        return results

    def lose(self, victim):
        with start(3) as job:
            wait_for(job, victim, r"step 7 of 3")
            job.processes[victim].send_signal(signal.SIGKILL)
            living = [rank for rank in range(3) if rank != victim]
            self.check(job, living, [3, 2])

    def test_the_first_rank_is_killed(self):
        self.lose(0)

    def test_the_last_rank_is_killed(self):
        self.lose(2)


if __name__ == "__main__":
    ranks.main(globals())
