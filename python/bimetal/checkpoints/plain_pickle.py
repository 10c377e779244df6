"""Reads what ``torch.save`` has written and takes tensors and plain values of it, by ``weights_only``, which runs no code.
DeepSpeed's files hold objects of its own beside the tensors, which ``weights_only`` refuses: here they are left empty."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from bimetal._errors import error


class _Empty:
    """In the place of an object that is not wanted."""

    def __new__(cls, *_: Any) -> _Empty:
        return object.__new__(cls)

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def load(file: pathlib.Path) -> Any:
    """On the CPU.

    Raises:
        bimetal.Error: ``unsupported`` with a torch that cannot say what a file holds.
        Exception: OSError, and torch's other exceptions for a file of another kind.
    """
    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        raise error(f"torch {torch.__version__} cannot say what is in {file} without running it: pip install 'torch>=2.6'", "unsupported")
    others = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    with torch.serialization.safe_globals([(_Empty, name) for name in others]):
        return torch.load(file, map_location="cpu", weights_only=True)
