"""Pipelines for training loops that exist already: a module in stages, one after the other, each on a rank of its own.

::

    dist.init_process_group("bimetal")
    model = GPT2LMHeadModel.from_pretrained("gpt2")
    optimizer = torch.optim.AdamW(model.parameters())
    staged = bimetal.pipeline.stages(model, optimizer, sample=next(iter(loader)))
    for batch in loader:                               # the same on every rank
        loss = staged.forward_backward(**batch)
        staged.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights = staged.state_dict()

docs/pipeline.md has what can be cut, and what each schedule costs.
"""

from bimetal.pipeline.staged import Staged
from bimetal.pipeline.staging import stages

__all__ = ["Staged", "stages"]
