"""ZeRO for training loops that exist already: optimizer states, gradients and parameters in shards, one for each rank,
as large as it has room for.

::

    dist.init_process_group("bimetal")
    optimizer = torch.optim.AdamW(model.parameters())
    sharded = bimetal.zero.shard(model, optimizer, level=3, shards="memory")
    for inputs, targets in loader:
        loss_of(model(inputs), targets).backward()
        sharded.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights = sharded.state_dict()

docs/zero.md has the levels, and what each costs.
"""

from bimetal.zero.core_optimizer import CoreOptimizer
from bimetal.zero.making import gathered, made_in_shards
from bimetal.zero.sharded import Sharded
from bimetal.zero.sharding import shard

__all__ = ["CoreOptimizer", "Sharded", "gathered", "made_in_shards", "shard"]
