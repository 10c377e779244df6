"""Tensor parallelism for training loops that exist already: a module's matrices in parts, one for each rank and as large as
it is fast.

::

    dist.init_process_group("bimetal")
    model = GPT2LMHeadModel.from_pretrained("gpt2")
    optimizer = torch.optim.AdamW(model.parameters())
    parted = bimetal.tensor.parts(model, optimizer, weights=[3, 1])
    for batch in loader:                               # the same on every rank
        model(**batch).loss.backward()
        parted.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights = parted.state_dict()

docs/tensor.md has what can be cut, and how a module of one's own says so.
"""

from bimetal.tensor.parted import Parted
from bimetal.tensor.parting import parts

__all__ = ["Parted", "parts"]
