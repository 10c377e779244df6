"""A state's contents as a text and tensors: for copies in memory, and for other ranks, without pickle."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from bimetal._errors import error

_DICTS = {kind.__name__: kind for kind in (dict, collections.OrderedDict, collections.Counter)}
_TENSOR, _TUPLE, _DICT = "tensor", "tuple", "dict"  # by which each is known in the text


class Packed:
    """A copy of plain values and tensors, in host memory."""

    def __init__(self, value: Any, name: str, before: Packed | None = None) -> None:
        """Args: name: the value's, for messages. before: a copy that is not needed any more, whose memory this one
        takes."""
        found: list[torch.Tensor] = []
        self.text = json.dumps(_plain(value, name, found))
        self.tensors = []
        for number, tensor in enumerate(found):
            room = before.tensors[number] if before is not None and number < len(before.tensors) else None
            if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
                room = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self.tensors.append(room)
        with torch.no_grad():
            for room, tensor in zip(self.tensors, found, strict=True):
                room.copy_(tensor)

    def value(self) -> Any:
        """The packed value. Tensors are copies, on the CPU."""
        tensors = iter(self.tensors)
        return _unpacked(json.loads(self.text), tensors)

    @classmethod
    def exchange(cls, own: Packed | None, root: int, takers: list[int]) -> Packed:
        """The takers get the root's. Collective among all ranks; the others keep their own."""
        rank = dist.get_rank()
        gives, takes = rank == root, rank in takers
        text = torch.tensor(list(own.text.encode()), dtype=torch.uint8, device="cpu") if gives else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(text)], device="cpu")
        _pass_on(length, root, takers)
        if not gives:
            text = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        _pass_on(text, root, takers)
        if not gives and not takes and len(takers) == 1:
            return own
        got = own if gives else cls.__new__(cls)
        if not gives:
            got.text = bytes(text.tolist()).decode()
            got.tensors = [torch.empty(shape, dtype=getattr(torch, dtype), device="cpu") for dtype, shape in _tensors_in(json.loads(got.text))]
        for tensor in got.tensors:
            _pass_on(tensor.reshape(-1).view(torch.uint8), root, takers)
        return got if takes else own


def _pass_on(tensor: torch.Tensor, root: int, takers: list[int]) -> None:
    """To one directly, without the others; to several by a broadcast."""
    if tensor.numel() == 0:
        return
    if len(takers) > 1:
        dist.broadcast(tensor, root)
    elif dist.get_rank() == root:
        dist.send(tensor, takers[0])
    elif dist.get_rank() in takers:
        dist.recv(tensor, root)


def _plain(value: Any, name: str, tensors: list[torch.Tensor]) -> Any:
    """As JSON has it. Numbers that are JSON's keep their bits: Python writes a float so that it reads the same."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise error(f"{name} is a {type(value).__name__}: what its rank has of it would be lost with the rank (as shards of FSDP2 and "
                        "bimetal.zero), or it is sparse. bimetal.elastic keeps whole tensors alone, as DistributedDataParallel has them",
                        "unsupported")
        tensors.append(value.detach())
        return {_TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, list):
        return [_plain(one, f"{name}[{at}]", tensors) for at, one in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(one, f"{name}[{at}]", tensors) for at, one in enumerate(value)]}
    if type(value).__name__ in _DICTS and isinstance(value, dict):
        items = [[_plain(key, f"a key of {name}", tensors), _plain(one, f"{name}[{key!r}]", tensors)] for key, one in value.items()]
        return {_DICT: [type(value).__name__, items, _plain(getattr(value, "_metadata", None), name, tensors)]}  # of a module's
    raise error(f"{name} is a {type(value).__name__}: a state keeps tensors, numbers, texts, and lists and dicts of these, which other "
                "ranks can be given without running code", "invalid_argument")


def _unpacked(plain: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(plain, list):
        return [_unpacked(one, tensors) for one in plain]
    if not isinstance(plain, dict):
        return plain
    (kind, content), = plain.items()
    if kind == _TENSOR:
        return next(tensors).clone()
    if kind == _TUPLE:
        return tuple(_unpacked(one, tensors) for one in content)
    made = _DICTS[content[0]]()
    for key, one in content[1]:
        key = _unpacked(key, tensors)
        made[key] = _unpacked(one, tensors)
    if content[2] is not None:
        made._metadata = _unpacked(content[2], tensors)
    return made


def _tensors_in(plain: Any) -> Iterator[tuple[str, list[int]]]:
    """Type and shape of each, in order."""
    if isinstance(plain, dict):
        (kind, content), = plain.items()
        if kind == _TENSOR:
            yield content[0], content[1]
            return
        plain = content
    if isinstance(plain, list):
        for one in plain:
            yield from _tensors_in(one)
