"""What went wrong in a job on a cluster, and whether another try can help."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bimetal._errors import Error, error

__all__ = ["AttemptFailed", "Error", "Failure", "code_in", "error", "root_cause"]

# What becomes of the other ranks when one is lost; and what the machine, not the program, may have caused.
_CONSEQUENCES = ("aborted", "peer_lost", "timeout")
_WORTH_ANOTHER_TRY = (*_CONSEQUENCES, "system")


@dataclass(frozen=True)
class Failure:
    """How one rank ended.

    Attributes:
        rank: whose end it was.
        text: for the user.
        code: as in bimetal.Error; ``peer_lost`` with ``died`` where the process itself is gone.
        about: the rank that is to blame, where the text names one.
        died: the process or its machine is gone, without a word.
        own: the error is one of the user's Python code.
    """

    rank: int
    text: str
    code: str
    about: int | None = None
    died: bool = False
    own: bool = False


class AttemptFailed(Exception):
    """One try has failed."""

    def __init__(self, cause: Failure, lost_nodes: frozenset[str] = frozenset(), in_order: bool = False):
        super().__init__(cause.text)
        self.cause = cause
        self.lost_nodes = lost_nodes  # where ranks were of which nothing was heard any more
        self.in_order = in_order  # nothing is lost: a node was ended, and the job has saved and left it

    @property
    def worth_another_try(self) -> bool:
        return self.cause.died or (not self.cause.own and self.cause.code in _WORTH_ANOTHER_TRY)


def root_cause(failures: Sequence[Failure]) -> Failure:
    """Which of several to tell the user: a rank that is gone, then an error of its own, then what follows from one."""
    def order(failure: Failure) -> tuple[bool, bool, int]:
        consequence = failure.code in _CONSEQUENCES and not failure.own
        return (not failure.died, consequence, _CONSEQUENCES.index(failure.code) if consequence else 0)

    return min(failures, key=order)


def code_in(text: str) -> tuple[str | None, int | None]:
    """Code and rank at the end of a message that came through torch: ``… [peer_lost, rank 2]``."""
    found = re.search(r"\[([a-z_]+)(?:, rank (\d+))?\]", text)
    if not found:
        return None, None
    return found[1], None if found[2] is None else int(found[2])
