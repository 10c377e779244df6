"""Which exceptions follow from a lost worker."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from bimetal._errors import Error

_CODES = ("peer_lost", "aborted", "timeout")
_MARK = re.compile(r"\[([a-z_]+)(?:, rank (\d+))?\]")  # at the end of an Error's text, which torch hands on without the class


def loss_behind(exception: BaseException) -> Error | None:
    """The Error of a loss that has led to it, or None."""
    for one in _chain(exception):
        if isinstance(one, Error):
            return one if one.code in _CODES else None
        if isinstance(one, RuntimeError):
            for mark in reversed(list(_MARK.finditer(str(one)))):
                code, rank = mark.groups()
                if code in _CODES:  # torch puts words of its own around the text, and the call stack of a hook
                    text = str(one)[:mark.end()].rpartition("\n")[2].rpartition("bimetal: ")[2]
                    return Error(text, code, int(rank) if rank else None)
    return None


def forget(exception: BaseException) -> None:
    """Frees the objects that the frames of the failed call keep: its DistributedDataParallel, with hooks on the
    parameters, and its tensors."""
    for one in _chain(exception):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None


def _chain(exception: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = exception
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__
