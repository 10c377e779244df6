"""Tensors in what modules take and return."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


def replace_tensors(value: Any, change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """The same value, in which the tensors that need a gradient are those that ``change`` makes of them.

    Looks into tuples, lists, dicts and dataclasses (Hugging Face's outputs are such). Other objects, as caches of keys
    and values, stay what they are, and are shared.
    """
    found: list[torch.Tensor] = []
    _walk(value, lambda tensor: found.append(tensor) or tensor)
    changed = iter(change(found))  # also of none
    return _walk(value, lambda _: next(changed)) if found else value


def _walk(value: Any, put: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return put(value) if value.requires_grad else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _walk(getattr(value, field.name), put) for field in dataclasses.fields(value)
                  if field.init}
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        items = [_walk(item, put) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is list:
        return [_walk(item, put) for item in value]
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _walk(item, put)) for key, item in value.items())
    return value
