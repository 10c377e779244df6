"""Smaller types on the wire."""

from __future__ import annotations

from typing import Any

import torch

from bimetal.horovod.core.compression import Compressor, NoneCompressor


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
    """What there is to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
