"""The DDP communication hooks that go with BalancedBatchSampler: one for means over samples, one for means over
tokens."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from bimetal._synchronize import synchronize_stream
from bimetal.balance.loss_check import warn_of_token_means
from bimetal.balance.sampler import BalancedBatchSampler


def sample_exact_hook(sampler: BalancedBatchSampler, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Makes DDP's gradients those of the mean loss over the samples of the whole global batch.

    DDP takes the mean over ranks, which is wrong as soon as ranks have unlike numbers of samples. With this
    hook each rank's gradient of the mean over its own bᵢ samples counts bᵢ/B, and the sum over the ranks equals the
    gradient that one device would have computed from all B. A rank without samples contributes zeros.

    Register it with the sampler as its state, once, before the first backward::

        model.register_comm_hook(sampler, bimetal.sample_exact_hook)

    The loss must be the mean over the rank's samples; where it is a mean over their tokens, as with language models,
    ``token_exact_hook`` is the one. One backward for each batch exchanges gradients, or for several with the sampler's
    ``accumulate``.

    Args:
        sampler: the one that the loop's DataLoader draws from; it learns from the step's time.
        bucket: gradients of some parameters, one dimension, on any device that the group serves.

    Returns:
        A future of the reduced bucket, of the same shape.

    Raises:
        RuntimeError: where no batch of the sampler is under way; and from DDP's backward, with the text of the
            bimetal.Error, where the exchange fails: torch keeps no more of what a hook raises.
    """
    sampler.check_bucket(bucket)
    if bucket.index() == 0:
        warn_of_token_means(sampler)
    summed = _sum(sampler, bucket, bucket.buffer(), sampler.gradient_weight())
    return _then(sampler, bucket, summed, lambda future: future.value()[0])


def token_exact_hook(sampler: BalancedBatchSampler, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Makes DDP's gradients those of the mean loss over the tokens of the whole global batch.

    A rank's loss is the mean over its own nᵢ tokens, and its gradient counts nᵢ/N with N = Σ nᵢ, which no rank knows
    beforehand. So gradients are summed times nᵢ; the counts set out together with the first bucket, and each bucket
    is divided by N once both are there. Nothing waits for the counts by itself. A rank without tokens contributes
    zeros, and where no rank has any the gradients are zero.

    Register it with the sampler as its state, once, before the first backward, and give before each backward the number
    that divided the rank's loss::

        model.register_comm_hook(sampler, bimetal.token_exact_hook)
        ...
        sampler.count_tokens(labels, shifted=True)  # or sampler.set_tokens(n)
        loss.backward()

    float16 ends at 65504, less than a gradient times its tokens: buckets of that type travel as float32. All others
    travel as they are.

    Args, returns and raises: as ``sample_exact_hook``, and RuntimeError where the step's tokens are not known.
    """
    sampler.check_bucket(bucket)
    gradients, weight = bucket.buffer(), sampler.gradient_weight(tokens=True)
    if bucket.index() == 0:
        sampler.send_tokens(gradients.device)
    wide = gradients.float() if gradients.dtype == torch.float16 else gradients
    summed = _sum(sampler, bucket, wide, weight)

    def divide(future: torch.futures.Future[list[torch.futures.Future[list[torch.Tensor]]]]) -> torch.Tensor:
        result, total = (part.wait()[0] for part in future.value())
        # With one dimension, so that half precisions are divided in float32 and rounded once.
        result.div_(total.clamp(min=1).to(torch.promote_types(result.dtype, torch.float32)))
        reduced = result if result is gradients else gradients.copy_(result)
        # The future of collect_all knows no device, so a thread that waits for it would not make its stream wait.
        synchronize_stream(reduced.device)
        return reduced

    return _then(sampler, bucket, torch.futures.collect_all([summed, sampler.all_tokens]), divide)


def _sum(sampler: BalancedBatchSampler, bucket: dist.GradBucket, gradients: torch.Tensor,
         factor: float) -> torch.futures.Future[list[torch.Tensor]]:
    """Begins the sum over the ranks of `factor` times the gradients, in place."""
    if factor > 0:
        gradients.mul_(factor)
    else:
        gradients.zero_()  # a product with 0 would keep values that are not finite
    last = bucket.is_last()
    if last:
        sampler.stop_clock(gradients.device)
    summed = dist.all_reduce(gradients, group=sampler.group, async_op=True).get_future()
    if last:
        sampler.exchange_figures()
    return summed


def _then(sampler: BalancedBatchSampler, bucket: dist.GradBucket, future: torch.futures.Future,
          take: Callable[[torch.futures.Future], torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
    """The bucket that `take` makes of the future, after which the next step's time begins."""
    last = bucket.is_last()

    def finish(done: torch.futures.Future) -> torch.Tensor:
        result = take(done)
        if last:
            sampler.restart_clock()
        return result

    return future.then(finish)
