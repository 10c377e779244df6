"""The loss that a model of transformers computes itself, from labels, where its logits are in parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bimetal._errors import error
from bimetal.tensor.layers import Logits


class OwnLoss:
    """In the place of the model's ``loss_function``. What is called with labels computes its loss from logits in parts. Its
    output then has no logits, or, in evaluations, whole ones, which metrics are of. From one thread."""

    def __init__(self, model: nn.Module, head: Logits):
        self._head, self._before, self._given = head, model.loss_function, None
        self._function = self.of_labels
        self._place = list(inspect.signature(_forward_of(model)).parameters).index("labels") - 1  # behind self
        model.loss_function = self._function
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end, always_call=True)

    def of_labels(self, logits: torch.Tensor, labels: torch.Tensor | None, vocab_size: int | None = None,
                  num_items_in_batch: torch.Tensor | int | None = None, ignore_index: int = -100,
                  shift_labels: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        """As transformers' ForCausalLMLoss, but for logits in float64, which stay it."""
        if not self._head.apart:
            return self._before(logits=logits, labels=labels, vocab_size=vocab_size, num_items_in_batch=num_items_in_batch,
                                ignore_index=ignore_index, shift_labels=shift_labels, **more)
        self._given = logits
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        if num_items_in_batch is None:
            return self._head.cross_entropy(logits, shift_labels, ignore_index)
        total = self._head.cross_entropy(logits, shift_labels, ignore_index, "sum")
        return total / (num_items_in_batch.to(total.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch)

    def _begin(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        labels = args[self._place] if len(args) > self._place else kwargs.get("labels")
        self._head.apart = labels is not None and model.loss_function is self._function

    def _end(self, model: nn.Module, _: tuple, output: Any) -> Any:
        part, apart, self._given, self._head.apart = self._given, self._head.apart, None, False
        if not apart or output is None:  # without labels, or with an error
            return None
        if part is None:
            raise error(f"{type(model).__name__} was given labels and has not called its loss_function, for which its logits are "
                        "in parts: call it without labels, or give a plan without its output layer", "unsupported")

        def whole(value: Any) -> Any:  # known by their shape: who wraps forward may have cast them
            if not isinstance(value, torch.Tensor) or value.shape != part.shape:
                return value
            return None if model.training else self._head.whole(value)

        if isinstance(output, tuple):
            return tuple(value for value in map(whole, output) if value is not None)
        kept = {name: whole(value) for name, value in output.items()}
        return type(output)(**{name: value for name, value in kept.items() if value is not None})


def has_own_loss(model: nn.Module) -> bool:
    """Whether its forward computes the loss by what OwnLoss can take the place of, and not otherwise, as
    GPT2DoubleHeadsModel does."""
    own: Callable | None = getattr(model, "loss_function", None)
    known = getattr(own, "__name__", "") == "ForCausalLMLoss" and own.__module__.startswith("transformers.")
    if not known:
        return False
    forward = _forward_of(model)
    return "loss_function" in forward.__code__.co_names and "labels" in inspect.signature(forward).parameters


def _forward_of(model: nn.Module) -> Callable:
    """Without what is around it."""
    return inspect.unwrap(type(model).forward)
