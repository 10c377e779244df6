"""Layers of which each rank has a part, in the place of whole ones; embedding and output layer by tokens of the vocabulary
(Shoeybi et al. 2019, section 3), and the loss that a model of transformers computes itself from logits in parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal.tensor.region import Region


class PartLayer(nn.Module):
    """With the parameters of the layer whose place it takes, under their names.

    Attributes: of_tensor_ranks: what sees it elsewhere (``bimetal.pipeline``) knows by it that the module is in parts.
    """

    of_tensor_ranks = True

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.weight, self.bias = layer.weight, getattr(layer, "bias", None)
        self.train(layer.training)


class _LinearPart(PartLayer):
    """Args: transposed: the weight is [in, out], as that of transformers' Conv1D."""

    def __init__(self, layer: nn.Module, region: Region, transposed: bool):
        super().__init__(layer)
        self._region, self._transposed = region, transposed

    def extra_repr(self) -> str:
        outputs, inputs = self._weight().shape
        return f"{inputs} features to {outputs} here"

    def _weight(self) -> torch.Tensor:
        return self.weight.t() if self._transposed else self.weight


class Columns(_LinearPart):
    """This rank's outputs of a linear layer, bias included. Outputs stay in parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self._region.enter(x), self._weight(), self.bias)


class Rows(_LinearPart):
    """This rank's inputs of a linear layer, which are given in parts; outputs are whole, the bias added once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self._region.leave(nn.functional.linear(x, self._weight()))
        return whole if self.bias is None else whole + self.bias.to(whole.dtype)


class Embeddings(PartLayer):
    """An embedding with whole tokens in parts: those of this rank are looked up here, the others' are zeros, and the
    ranks' sum has all.

    Args:
        here: this rank's first token, and how many it has.
    """

    def __init__(self, layer: nn.Embedding, ranks: _C.PartRanks, here: tuple[int, int]):
        super().__init__(layer)
        self.num_embeddings, self.embedding_dim, self.padding_idx = layer.num_embeddings, layer.embedding_dim, layer.padding_idx
        self._ranks, (self._first, self._count) = ranks, here

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        require_tokens(tokens, self.num_embeddings)
        rows = tokens - self._first
        elsewhere = (rows < 0) | (rows >= self._count)
        found = nn.functional.embedding(rows.masked_fill(elsewhere, 0), self.weight, self._padding())
        return self._ranks.sum(found.masked_fill(elsewhere.unsqueeze(-1), 0))

    def extra_repr(self) -> str:
        return f"tokens {self._first} to {self._first + self._count - 1} of {self.num_embeddings}, {self.embedding_dim}"

    def _padding(self) -> int | None:
        here = self.padding_idx is not None and 0 <= self.padding_idx - self._first < self._count
        return self.padding_idx - self._first if here else None


class Logits(PartLayer):
    """An output layer, of whose logits this rank computes those of its tokens.

    Args:
        here: as of ``Embeddings``.

    Attributes:
        apart: logits stay in parts, for ``cross_entropy``; else they are gathered, and their gradient is to be the same on all
            ranks, as that of a loss is which all compute alike.
    """

    def __init__(self, layer: nn.Linear, ranks: _C.PartRanks, here: tuple[int, int], apart: bool):
        super().__init__(layer)
        self.in_features, self.out_features, self.apart = layer.in_features, layer.out_features, apart
        self._ranks, (self._first, self._count) = ranks, here

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            x = self._ranks.shared(x)
        part = nn.functional.linear(x, self.weight, self.bias)
        return part if self.apart else self.whole(part)

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Logits of all ranks' tokens. Collective."""
        return self._ranks.gathered(part.reshape(-1, self._count), self.out_features).view(*part.shape[:-1], self.out_features)

    def cross_entropy(self, part: torch.Tensor, targets: torch.Tensor, ignore_index: int = -100,
                      reduction: str = "mean") -> torch.Tensor:
        """As ``torch.nn.functional.cross_entropy``, of logits in parts, which are nowhere together. Collective.

        Args:
            part: [..., tokens here]: this rank's logits; those of 16 bits are computed with in float32.
            targets: [...]: tokens of the whole vocabulary, the same on all ranks.
            reduction: "mean" over the targets that count, or "sum".
        """
        if reduction not in ("mean", "sum"):
            raise error(f"reduction = \"{reduction}\": \"mean\" or \"sum\"", "invalid_argument")
        if part.shape != (*targets.shape, self._count):
            raise error(f"logits of shape {list(part.shape)} for targets of shape {list(targets.shape)}: a target for each row of "
                        f"{self._count} logits, of the tokens that this rank has", "invalid_argument")
        targets = targets.reshape(-1).to(part.device)
        counted = targets != ignore_index
        require_tokens(targets[counted] if targets.is_cpu else targets, self.out_features)
        total = self._ranks.cross_entropy_sum(part.reshape(-1, self._count), targets, self.out_features, ignore_index)
        return total if reduction == "sum" else total / counted.sum()

    def extra_repr(self) -> str:
        return f"{self.in_features} features to tokens {self._first} to {self._first + self._count - 1} of {self.out_features}"


def require_tokens(tokens: torch.Tensor, vocabulary: int) -> None:
    """bimetal.Error ``invalid_argument`` for one that no rank has; on the CPU alone, since elsewhere a look would hold it up."""
    if not tokens.is_cpu or tokens.numel() == 0:
        return
    least, most = (int(value) for value in tokens.aminmax())
    if least < 0 or most >= vocabulary:
        raise error(f"token {least if least < 0 else most} is not in the module's vocabulary of {vocabulary}",
                    "invalid_argument")


class OwnLoss:
    """In the place of the model's ``loss_function``. A model called with labels computes its loss from logits in parts.
    Its output then has no logits or, in evaluations, whole ones for metrics. From one thread."""

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
    """The forward without its wrappers."""
    return inspect.unwrap(type(model).forward)
