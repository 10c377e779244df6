"""bimetal.balance: unequal work under torch's own DDP gives what one device gives."""

import contextlib
import time
import unittest
from unittest import mock

import models
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import bimetal
from bimetal._synchronize import synchronize
from bimetal.balance.bucket_check import BucketCheck

SAMPLES, BATCH, EPOCHS = 107, 16, 3  # 7 steps an epoch, the last one of 11 samples


def dataset():
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(SAMPLES, 1, 28, 28, generator=generator, dtype=torch.float64),
                         torch.randint(0, 10, (SAMPLES,), generator=generator), torch.arange(SAMPLES))


def train(model, sampler, loader, after_batch=lambda: None):
    """Parameters after training, what was seen in each epoch, and the shares of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, counts = [], []
    for _ in range(EPOCHS):
        seen.append([])
        for images, labels, indices in loader:
            counts.append(sampler.counts)
            if sampler.weight > 0:
                seen[-1] += indices.tolist()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            after_batch()
    return [p.detach() for p in model.parameters()], seen, counts


def distributed(balance, weights, workers):
    """Trains with DDP; the last rank computes slowly."""
    rank = dist.get_rank()
    model = DistributedDataParallel(models.make("cnn").double(), bucket_cap_mb=0.01)
    prefetch = 2 * workers
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=9, balance=balance, weights=weights, prefetch=prefetch)
    loader = DataLoader(dataset(), batch_sampler=sampler, num_workers=workers,
                        prefetch_factor=2 if workers else None)
    model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    if balance == "auto" and rank == dist.get_world_size() - 1:
        # In forward, where the hook's clock counts it.
        model.module.register_forward_pre_hook(lambda _, inputs: time.sleep(0.01 * len(inputs[0])))
    parameters, seen, counts = train(model, sampler, loader)
    return [[p.tolist() for p in parameters], seen, counts]


def accumulating(weights, accumulate, workers):
    """The same in smaller batches, of which several are one step; the last step of an epoch has fewer."""
    model = DistributedDataParallel(models.make("cnn").double(), bucket_cap_mb=0.01)
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH // accumulate, seed=9, balance="fixed", weights=weights,
                                           accumulate=accumulate, prefetch=2 * workers)
    loader = DataLoader(dataset(), batch_sampler=sampler, num_workers=workers, prefetch_factor=2 if workers else None)
    model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, counts = [], []
    for _ in range(EPOCHS):
        seen.append([])
        for number, (images, labels, indices) in enumerate(loader, 1):
            counts.append(sampler.counts)
            if sampler.weight > 0:
                seen[-1] += indices.tolist()
            last = number % accumulate == 0 or number == len(sampler)
            with contextlib.nullcontext() if last else model.no_sync():
                (sampler.weigh(nn.functional.cross_entropy(model(images), labels)) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return [[p.tolist() for p in model.parameters()], seen, counts]


def forgetting_to_weigh():
    model = DistributedDataParallel(nn.Linear(3, 1))
    sampler = bimetal.BalancedBatchSampler(8, 2, accumulate=2)
    model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    next(iter(sampler))
    return str(ranks.raises(Exception, lambda: model(torch.ones(1, 3)).sum().backward()))


def alone():
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=9)
    model = models.make("cnn").double()
    loader = DataLoader(dataset(), batch_sampler=sampler)
    return train(model, sampler, loader, lambda: sampler.finish_step(0.01))


class SampleExact(unittest.TestCase):
    def like_one_device(self, count, *arguments, how=distributed):
        answers = ranks.on_ranks(count, how, *arguments, timeout=240)
        reference, whole, _ = alone()
        for parameters, _, counts in answers:
            self.assertLess(models.difference(parameters, reference), 1e-12)
            self.assertEqual(counts, answers[0][2], "ranks disagree about the shares")
        for epoch in range(EPOCHS):
            visited = [index for _, seen, _ in answers for index in seen[epoch]]
            self.assertEqual(sorted(visited), list(range(SAMPLES)), "not every sample exactly once")
            self.assertEqual(set(visited), set(whole[epoch]))
        return answers[0][2]

    def test_moving_shares(self):
        counts = self.like_one_device(2, "auto", [], 0)
        self.assertEqual(counts[0], [8, 8])
        self.assertGreater(counts[-2][0], 10, f"the shares did not follow the speed: {counts}")

    def test_several_batches_are_one_step(self):
        for workers in (0, 1):
            counts = self.like_one_device(3, [3, 1, 0], 4, workers, how=accumulating)
            self.assertEqual(counts[0], [3, 1, 0])
            self.assertEqual(len(counts) // EPOCHS % 4, 3, "the last step of an epoch is to have fewer batches")

    def test_accumulation_by_halves_is_told(self):
        for text in ranks.on_ranks(2, forgetting_to_weigh):
            self.assertIn("sampler.weigh(loss) for 0 batches; this step has 2", text)


class Sampler(unittest.TestCase):
    """In one process."""

    def test_length_and_epochs(self):
        sampler = bimetal.BalancedBatchSampler(10, 4, seed=2)
        self.assertEqual(len(sampler), 3)
        orders = []
        for _ in range(2):
            epoch = []
            for batch in sampler:
                epoch += batch
                sampler.finish_step(0.1)
            self.assertEqual(sorted(epoch), list(range(10)))
            orders.append(epoch)
        self.assertNotEqual(*orders)
        sampler.set_epoch(0)
        self.assertEqual(next(iter(sampler)), orders[0][:4])

    def test_it_goes_on_where_a_checkpoint_was_made(self):
        sampler = bimetal.BalancedBatchSampler(10, 4, seed=2)
        batches = iter(sampler)
        first = next(batches)
        self.assertEqual(sampler.state_dict(), {"epoch": 0, "offset": 0})
        sampler.finish_step(0.1)
        second = next(batches)
        state = sampler.state_dict()
        self.assertEqual(state, {"epoch": 0, "offset": 4})
        again = bimetal.BalancedBatchSampler(10, 4, seed=2)
        again.load_state_dict(state)
        rest = []
        for batch in again:
            rest += batch
            again.finish_step(0.1)
        self.assertEqual(rest[:4], second)
        self.assertEqual(sorted(first + rest), list(range(10)))

    def test_setting_the_epoch_that_was_loaded_keeps_the_place(self):
        place = {"epoch": 1, "offset": 4}
        sampler = bimetal.BalancedBatchSampler(10, 4, seed=2)
        sampler.load_state_dict(place)
        sampler.set_epoch(1)
        self.assertEqual(sampler.state_dict(), place)
        rest = []
        for batch in sampler:
            rest += batch
            sampler.finish_step(0.1)
        self.assertEqual(len(rest), 6)
        sampler.set_epoch(1)  # over, so that it is begun anew
        self.assertEqual(sampler.state_dict(), {"epoch": 1, "offset": 0})
        sampler.set_epoch(1, batches=3)  # all of it: the next one follows
        self.assertEqual(sampler.state_dict(), {"epoch": 2, "offset": 0})

    def test_what_a_loop_has_under_way_is_given_up(self):
        for number, change in enumerate((lambda s: s.set_epoch(7), lambda s: s.load_state_dict({"epoch": 7, "offset": 4}),
                                         lambda s: s.set_epoch(7, batches=2))):
            sampler = bimetal.BalancedBatchSampler(10, 4, prefetch=1)
            batches = iter(sampler)
            next(batches)
            change(sampler)
            self.assertEqual(sampler.state_dict(), {"epoch": 7, "offset": 4 * number})
            with self.subTest(number), self.assertRaisesRegex(RuntimeError, "leave it, and begin a new one"):
                next(batches)

    def test_a_loader_that_draws_ahead_is_found_out(self):
        sampler = bimetal.BalancedBatchSampler(100, 4)
        batches = iter(sampler)
        next(batches)
        with self.assertRaisesRegex(RuntimeError, "pass accumulate=.*prefetch=num_workers"):
            next(batches)

    def test_a_card_is_waited_for_in_any_torch(self):
        """torch.accelerator came with 2.6. No card is needed: it is torch's call for one that counts."""
        sampler, card = bimetal.BalancedBatchSampler(100, 4), torch.device("cuda", 1)
        with mock.patch.object(torch, "accelerator", None, create=True), mock.patch.object(torch.cuda, "synchronize") as waited:
            sampler.stop_clock(card)
            synchronize(torch.device("cpu"))
        waited.assert_called_once_with(card)
        with mock.patch.object(torch.mps, "synchronize") as waited:
            synchronize(torch.device("mps", 0))
        waited.assert_called_once_with()

    def test_a_model_that_no_ddp_has_is_looked_for_once(self):
        """All objects of the program are looked through for it."""
        parameters = [nn.Parameter(torch.ones(1))]
        bucket = mock.Mock(**{"parameters.return_value": parameters, "index.return_value": 0, "is_last.return_value": True})
        check = BucketCheck()
        with mock.patch("gc.get_objects", return_value=[]) as looked:
            for epoch in (0, 0, 0, 1, 1):
                check(bucket, epoch)
        self.assertEqual(looked.call_count, 2, "once in each epoch: another model may have come")

    def test_gradients_without_a_batch(self):
        with self.assertRaisesRegex(RuntimeError, "no batch is under way"):
            _ = bimetal.BalancedBatchSampler(100, 4).weight

    def test_numbers_that_cannot_work(self):
        for arguments in ({"dataset": 0, "global_batch": 4}, {"dataset": 4, "global_batch": 0},
                          {"dataset": 4, "global_batch": 4, "balance": "often"},
                          {"dataset": 4, "global_batch": 4, "accumulate": 0},
                          {"dataset": 3, "global_batch": 2, "lengths": [1, 2]}, {"dataset": 3, "global_batch": 2, "lengths": [1, 2, 0]},
                          {"dataset": 4, "global_batch": 4, "balance": "fixed", "weights": [1, 2]}):
            with self.subTest(arguments), self.assertRaises(bimetal.Error) as caught:
                bimetal.BalancedBatchSampler(**arguments)
            self.assertEqual(caught.exception.code, "invalid_argument")


if __name__ == "__main__":
    ranks.main(globals())
