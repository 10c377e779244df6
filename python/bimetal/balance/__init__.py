"""Unequal work for training loops that exist already: batches that follow each rank's speed, and gradients
that are exact nevertheless."""

from bimetal.balance.hook import sample_exact_hook, token_exact_hook
from bimetal.balance.monitor import monitor, page
from bimetal.balance.sampler import BalancedBatchSampler

__all__ = ["BalancedBatchSampler", "monitor", "page", "sample_exact_hook", "token_exact_hook"]
