"""The DDP communication hook that goes with BalancedBatchSampler."""

import torch
import torch.distributed as dist

from bimetal.balance.sampler import BalancedBatchSampler


def sample_exact_hook(sampler: BalancedBatchSampler, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Makes DDP's gradients those of the mean loss over the whole global batch.

    DDP takes the mean over ranks, which is wrong as soon as ranks have unlike numbers of samples. With this
    hook each rank's gradient of the mean over its own bᵢ samples counts bᵢ/B, and the sum over the ranks is
    what one device would have computed from all B. A rank without samples contributes zeros.

    Register it with the sampler as its state, once, before the first backward::

        model.register_comm_hook(sampler, bimetal.sample_exact_hook)

    The loss must be the mean over the rank's batch. Every backward must exchange gradients: no ``no_sync()``.

    Args:
        sampler: the one that the loop's DataLoader draws from; it learns from the step's time.
        bucket: gradients of some parameters, one dimension, on any device that the group serves.

    Returns:
        A future of the reduced bucket, of the same shape.

    Raises:
        bimetal.Error: from DDP's backward, where the exchange fails.
        RuntimeError: where no batch of the sampler is under way.
    """
    gradients = bucket.buffer()
    weight = sampler.weight
    if weight > 0:
        gradients.mul_(weight)
    else:
        gradients.zero_()  # a product with 0 would keep what is not finite
    last = bucket.is_last()
    if last:
        sampler.stop_clock(gradients.device)
    reduced = dist.all_reduce(gradients, group=sampler.group, async_op=True)
    if last:
        sampler.exchange_figures()

    def take(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        result = future.value()[0]
        if last:
            sampler.restart_clock()
        return result

    return reduced.get_future().then(take)
