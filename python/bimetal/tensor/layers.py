"""Layers of which each rank has a part, in the place of whole ones."""

from __future__ import annotations

import torch
from torch import nn

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
