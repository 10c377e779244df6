"""Layers of which each rank has a part, in the place of whole ones; embedding and output layer by tokens of the vocabulary
(Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

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
    """Of whole tokens: those of this rank are looked up here, the others' are zeros, and the ranks' sum has all.

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
