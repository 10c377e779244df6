"""Reads what ``torch.save`` has written and takes tensors and plain values of it. Objects of any other class are left empty,
and none of their code runs: files of DeepSpeed hold some of its own beside the tensors, and ``weights_only`` refuses those."""

from __future__ import annotations

import collections
import pathlib
import pickle
import types
from typing import Any

import torch

_CLASSES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict, ("builtins", "set"): set, ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter}


class _Empty:
    """In the place of an object that is not wanted."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, _: Any, __: Any) -> None: ...

    def append(self, _: Any) -> None: ...


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        found = getattr(torch, name, None) if module == "torch" and "." not in name else None
        storage = isinstance(found, type) and name.endswith("Storage")
        return found if storage or isinstance(found, torch.dtype) else _Empty


def load(file: pathlib.Path) -> Any:
    """On the CPU. OSError, and whatever else torch raises of what is no such file."""
    return torch.load(file, map_location="cpu", weights_only=False, pickle_module=types.SimpleNamespace(
        __name__=__name__, Unpickler=_Unpickler, load=pickle.load, loads=pickle.loads))
