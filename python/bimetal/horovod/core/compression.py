"""Smaller types on the wire: the part that is the same for every framework's tensors, and PyTorch's."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """The base class of one's own compression: both methods are static and see one tensor of the framework."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to exchange, and whatever decompress() needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The exchanged tensor as it was given to compress()."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Floating point as float16: half the bytes of float32, sums rounded to 11 bits."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        smaller = tensor.dtype in (torch.float32, torch.float64, torch.bfloat16)
        return (tensor.half() if smaller else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """The compressions to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
