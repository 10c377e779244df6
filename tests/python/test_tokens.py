"""bimetal.token_exact_hook: means over tokens under torch's own DDP are what one process gets."""

import unittest

import models
import ranks
import torch
import torch.distributed as dist
from sequences import BATCH, EPOCHS, NO_LABEL, SAMPLES, alone, gpt, lengths, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


class TokenExact(unittest.TestCase):
    def like_one_process(self, weights, *how, kind="own"):
        """The samples that the ranks saw in each step, after comparing the parameters."""
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

    def test_three_ranks_one_without_samples(self):
        steps = self.like_one_process([5, 0, 3])
        self.assertEqual(steps[0][0][0], [20, 0, 12])

    def test_a_rank_whose_samples_have_no_labels(self):
        steps = self.like_one_process([30, 1, 1])
        without = [step for step in steps for rank, (counts, tokens) in enumerate(step) if counts[rank] and not tokens]
        self.assertTrue(without, "no batch was without labels")

    def test_unequal_shares(self):
        """In micro-batches of 5."""
        steps = self.like_one_process([24, 8], 5)
        self.assertEqual(steps[0][0][0], [24, 8])
        self.assertEqual(sum(steps[2][0][0]), SAMPLES % BATCH)

    def test_shares_of_tokens(self):
        steps = self.like_one_process([3, 1], None, True)
        counts = [step[0][0] for step in steps]
        self.assertTrue(any(of_rank[0] != 24 for of_rank in counts), "the samples were dealt out without their lengths")


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


class Counts(unittest.TestCase):
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


if __name__ == "__main__":
    ranks.main(globals())
