"""``model.compile()`` for distributed optimizers, and for scripts written for older Keras."""

from __future__ import annotations

import functools
from typing import Any

import keras

from bimetal.horovod.tensorflow.optimizer import DistributedKerasOptimizer


def adapt_compile() -> None:
    """Wraps ``keras.Model.compile``, once.

    - Where Keras would choose XLA for whole steps (it does so where it finds an accelerator), a model with a
      distributed optimizer goes without: its exchanges leave TensorFlow, which XLA cannot.
    - ``experimental_run_tf_function``, which Horovod's scripts for Keras pass and which Keras 3 does not know any
      more, is taken and ignored: what it switched off is gone.
    """
    # The class that defines it: Keras looks whether models override it.
    owner = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    original = owner.compile
    if getattr(original, "knows_bimetal", False):
        return

    @functools.wraps(original)
    def compile(self: keras.Model, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:  # noqa: A001
        kwargs.pop("experimental_run_tf_function", None)
        if isinstance(optimizer, DistributedKerasOptimizer) and kwargs.get("jit_compile", "auto") == "auto":
            kwargs["jit_compile"] = False
        original(self, optimizer, *args, **kwargs)

    compile.knows_bimetal = True
    owner.compile = compile
