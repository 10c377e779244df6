"""Hugging Face's Trainer and Accelerator on unequal machines, by one line (docs/python.md)::

    from bimetal.hf import balanced
    Trainer = balanced(transformers.Trainer)
    Accelerator = balanced(accelerate.Accelerator)

The rest of the script stays as it is: datasets, models (PEFT's, too), arguments, callbacks, the loop.
"""

import sys

from bimetal.hf.accelerator import BalancedAccelerator
from bimetal.hf.trainer import Balanced

__all__ = ["Balanced", "BalancedAccelerator", "balanced"]


def balanced(kind: type) -> type:
    """A class of the same use whose ranks have unequal work: ``Balanced`` mixed into transformers.Trainer or a class derived
    from it, as trl's SFTTrainer, ``BalancedAccelerator`` into accelerate.Accelerator."""
    accelerate = sys.modules.get("accelerate")
    is_accelerator = accelerate is not None and issubclass(kind, accelerate.Accelerator)
    return type(f"Balanced{kind.__name__}", (BalancedAccelerator if is_accelerator else Balanced, kind), {})
