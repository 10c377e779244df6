"""Hugging Face's Trainer on unequal machines, by one line (docs/python.md, "Hugging Face's Trainer")::

    from bimetal.hf import balanced
    Trainer = balanced(transformers.Trainer)

The rest of the script stays as it is: datasets, models (PEFT's, too), TrainingArguments, callbacks.
"""

from bimetal.hf.trainer import Balanced, balanced

__all__ = ["Balanced", "balanced"]
