"""bimetal.token_exact_hook: means over tokens under torch's own DDP are what one process gets."""

import contextlib
import importlib.util
import os
import signal
import unittest

import models
import ranks
import torch
import torch.distributed as dist
from sequences import BATCH, EPOCHS, NO_LABEL, SAMPLES, alone, gpt, lengths, padded, sequences, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import bimetal


def distributed(kind, hook, weights, micro_batch=None, by_tokens=False):
    model = DistributedDataParallel(gpt(kind), bucket_cap_mb=0.02)
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=9, balance="fixed", weights=weights,
                                           lengths=lengths() if by_tokens else ())
    buckets = set()

    def counted(state, bucket):
        buckets.add(bucket.index())
        return getattr(bimetal, hook)(state, bucket)

    model.register_comm_hook(sampler, counted)
    parameters, seen, steps = train(model, sampler, micro_batch)
    return [[p.tolist() for p in parameters], seen, steps, len(buckets)]


def accumulating(weights, accumulate):
    """The same in smaller batches, of which several are one step; some of them have no labels here."""
    model = DistributedDataParallel(gpt("own"), bucket_cap_mb=0.02)
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH // accumulate, seed=9, balance="fixed", weights=weights,
                                           accumulate=accumulate)
    model.register_comm_hook(sampler, bimetal.token_exact_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(sequences(), batch_sampler=sampler, collate_fn=padded)
    for _ in range(EPOCHS):
        for number, (_, ids, labels) in enumerate(loader, 1):
            tokens = max(1, sampler.count_tokens(labels, shifted=True))  # or a loss without labels would be 0/0
            last = number % accumulate == 0 or number == len(sampler)
            with contextlib.nullcontext() if last else model.no_sync():
                (sampler.weigh(model(ids, labels, num_items_in_batch=tokens)) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return [p.tolist() for p in model.parameters()]


class TokenExact(unittest.TestCase):
    def test_several_batches_are_one_step(self):
        reference, _, _ = alone("own")
        for parameters in ranks.on_ranks(2, accumulating, [3, 1], 8, timeout=240):
            self.assertLess(models.difference(parameters, reference), 1e-12)

    def like_one_process(self, weights, *how, kind="own"):
        """What the ranks saw in each step, after comparing what they learnt."""
        answers = ranks.on_ranks(len(weights), distributed, kind, "token_exact_hook", weights, *how, timeout=240)
        reference, whole, steps = alone(kind)
        for parameters, _, _, buckets in answers:
            self.assertGreater(buckets, 2)
            self.assertLess(models.difference(parameters, reference), 1e-12)
        for epoch in range(EPOCHS):
            visited = [index for _, seen, _, _ in answers for index in seen[epoch]]
            self.assertEqual(sorted(visited), list(range(SAMPLES)), "not every sample exactly once")
            self.assertEqual(set(visited), set(whole[epoch]))
        for step, (_, tokens) in enumerate(steps):
            mine = [answer[2][step][1] if answer[2][step][0][rank] else 0 for rank, answer in enumerate(answers)]
            self.assertEqual(sum(mine), tokens)
        return [[answer[2][step] for answer in answers] for step in range(len(steps))]

    def test_equal_shares(self):
        steps = self.like_one_process([16, 16])
        self.assertNotEqual(steps[0][0][1], steps[0][1][1], "equal tokens would prove nothing")

    def test_unequal_shares(self):
        steps = self.like_one_process([24, 8])
        self.assertEqual(steps[0][0][0], [24, 8])
        self.assertEqual(sum(steps[2][0][0]), SAMPLES % BATCH)

    def test_three_ranks_one_without_samples(self):
        steps = self.like_one_process([5, 0, 3])
        self.assertEqual(steps[0][0][0], [20, 0, 12])

    def test_a_rank_whose_samples_have_no_labels(self):
        steps = self.like_one_process([30, 1, 1])
        without = [step for step in steps for rank, (counts, tokens) in enumerate(step) if counts[rank] and not tokens]
        self.assertTrue(without, "no batch was without labels")

    def test_micro_batches(self):
        self.like_one_process([24, 8], 5)

    def test_shares_of_tokens(self):
        steps = self.like_one_process([3, 1], None, True)
        counts = [step[0][0] for step in steps]
        self.assertTrue(any(of_rank[0] != 24 for of_rank in counts), "the samples were dealt out without their lengths")

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_gpt2_of_hugging_face(self):
        self.like_one_process([24, 8], kind="transformers")

    def test_the_mean_over_samples_would_not_do(self):
        """The comparison can fail: with the other hook it does."""
        for weights in ([16, 16], [24, 8]):
            answers = ranks.on_ranks(2, distributed, "own", "sample_exact_hook", weights)
            self.assertGreater(models.difference(answers[0][0], alone("own")[0]), 1e-3)


PRECISIONS = ["float64", "float32", "bfloat16", "float16"]
CASES = [  # tokens and gradient of each rank, and how many roundings the result may be away
    ([3, 5], [4, 5], 4),
    ([2 ** 24 + 1, 1], [4, 5], 4),
    ([2 ** 40, 2 ** 40 + 2 ** 20], [4, 5], 4),
    ([256, 1], [4, 0], 0.25),  # 257 is no bfloat16: all is exact but the result's own rounding
    ([0, 5], [float("inf"), 5], 4),
    ([0, 0], [4, 5], 4),
]


def in_precision(name, counts, gradients):
    """(least, greatest gradient) after a step of a model whose own gradients all are gradients[rank]."""
    rank, dtype = dist.get_rank(), getattr(torch, name)
    layers = nn.Sequential(*(nn.Linear(64, 64, bias=False, dtype=dtype) for _ in range(3)))
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(1 / 64)
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
    sampler = bimetal.BalancedBatchSampler(2, 2)
    model.register_comm_hook(sampler, bimetal.token_exact_hook)
    for _ in sampler:
        sampler.set_tokens(counts[rank])
        (model(torch.ones(1, 64, dtype=dtype)).sum() * gradients[rank]).backward()
    reduced = torch.cat([p.grad.double().flatten() for p in model.parameters()])
    return reduced.min().item(), reduced.max().item()


def in_every_precision():
    return [[in_precision(name, counts, gradients) for counts, gradients, _ in CASES] for name in PRECISIONS]


def untold():
    model = DistributedDataParallel(nn.Linear(2, 2))
    sampler = bimetal.BalancedBatchSampler(8, 4)
    model.register_comm_hook(sampler, bimetal.token_exact_hook)
    steps = iter(sampler)
    next(steps)
    sampler.set_tokens(3)
    model(torch.ones(1, 2)).sum().backward()
    next(steps)  # what was told holds for one step
    ranks.raises(RuntimeError, lambda: model(torch.ones(1, 2)).sum().backward(), "count_tokens(labels")
    return "done"


def lost():
    """The error that the others get when rank 1 is killed between two exchanges."""
    model = DistributedDataParallel(gpt("own"), bucket_cap_mb=0.02)
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH)
    model.register_comm_hook(sampler, bimetal.token_exact_hook)
    forwards = []

    def before_forward(*_):
        forwards.append(1)
        if dist.get_rank() == 1 and len(forwards) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    model.module.register_forward_pre_hook(before_forward)
    ranks.save(str(ranks.raises(RuntimeError, lambda: train(model, sampler))))
    os._exit(0)


class Counts(unittest.TestCase):
    def test_a_lost_rank(self):
        with ranks.start(2, lost) as job:
            self.assertEqual(job.wait(100), [0, -signal.SIGKILL], job.text())
            self.assertIn("[peer_lost, rank 1]", job.value(0))

    def test_every_precision_and_large_counts(self):
        for answer in ranks.on_ranks(2, in_every_precision):
            for name, extremes in zip(PRECISIONS, answer, strict=True):
                for (counts, gradients, roundings), found in zip(CASES, extremes, strict=True):
                    exact = sum(n * g for n, g in zip(counts, gradients, strict=True) if n) / max(sum(counts), 1)
                    allowed = roundings * torch.finfo(getattr(torch, name)).eps * exact
                    with self.subTest(name, counts=counts):
                        for gradient in found:
                            self.assertAlmostEqual(gradient, exact, delta=allowed)

    def test_tokens_that_nobody_told(self):
        self.assertEqual(ranks.on_ranks(2, untold), ["done"] * 2)

    def test_counting_labels(self):
        sampler = bimetal.BalancedBatchSampler(4, 4)
        labels = torch.tensor([[1, 2, 3], [NO_LABEL, 5, NO_LABEL]])
        next(iter(sampler))
        self.assertEqual(sampler.count_tokens(labels, shifted=True), 3)
        self.assertEqual(sampler.count_tokens(labels, shifted=False), 4)
        self.assertEqual(sampler.count_tokens(labels, shifted=False, ignore_index=5), 5)
        self.assertEqual(sampler.tokens, 5)
        with self.assertRaises(ValueError):
            sampler.set_tokens(-1)


def work_of_each_rank(costs):
    """Tokens of each rank in every step, and the final shares, where rank r takes costs[r] seconds a token."""
    sampler = bimetal.BalancedBatchSampler(SAMPLES, 16, seed=9, lengths=lengths())
    rank, tokens = dist.get_rank(), []
    for _ in range(6):
        for batch in sampler:
            mine = sum(lengths()[index] for index in batch) if sampler.weight else 0
            tokens.append(mine)
            sampler.finish_step(costs[rank] * mine or None)
    return [tokens, sampler.shares]


class SharesOfTokens(unittest.TestCase):
    def test_they_follow_the_speed(self):
        answers = ranks.on_ranks(2, work_of_each_rank, [0.001, 0.003])
        shares = answers[0][1]
        self.assertEqual(answers[1][1], shares)
        self.assertEqual(sum(shares), round(16 * sum(lengths()) / SAMPLES))
        self.assertAlmostEqual(shares[0] / sum(shares), 0.75, delta=0.03)
        late = [(mine, other) for mine, other in zip(*(answer[0][-10:] for answer in answers), strict=True)]
        self.assertAlmostEqual(sum(mine for mine, _ in late) / sum(map(sum, late)), 0.75, delta=0.03)

    def test_lengths_that_cannot_be(self):
        for wrong in ([1, 2], [1, 2, 0]):
            with self.assertRaises(bimetal.Error) as caught:
                bimetal.BalancedBatchSampler(3, 2, lengths=wrong)
            self.assertEqual(caught.exception.code, "invalid_argument")


if __name__ == "__main__":
    ranks.main(globals())
