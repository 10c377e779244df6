"""A BalancedBatchSampler's knowledge of others that use it, or wait in its loop."""

from __future__ import annotations

import sys
from typing import Any

_WRAPPED_AT_MOST = 4  # samplers of others around this one


def fsdp_is_there() -> bool:
    """Whether ``fully_shard`` has had a module that is still there."""
    states = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", {})
    return any(type(state()).__name__ == "FSDPState" for state in list(states.values()))


def refuse_to_be_skipped(caller: Any) -> None:
    """Accelerate's function draws batches and drops them, so that those after them would have their weights."""
    for _ in range(_WRAPPED_AT_MOST):
        if caller is None:
            return
        if type(caller.f_locals.get("self")).__name__ != "SkipBatchSampler":
            caller = caller.f_back
            continue
        raise RuntimeError("accelerate.skip_first_batches() cannot skip batches of a BalancedBatchSampler: use "
                           "accelerator.skip_first_batches(loader, n), accelerator.load_state(folder), or "
                           "sampler.set_epoch(epoch, batches=n)")
