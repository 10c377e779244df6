"""Smaller types on the wire: what is the same for every framework's tensors."""

from __future__ import annotations

from typing import Any


class Compressor:
    """What to derive one's own compression from: both methods are static and see one tensor of the framework."""

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
