"""What is to be over when a backward ends, seen to by the thread that runs it.

DDP's reducer asks for a bucket's future during the backward and waits for it when all has been computed, in a callback that it
has given torch's engine after the last bucket. One that is queued when the future is asked for comes before that one and in the
same thread. So nobody need be woken up to complete the future, on processors that the backward has a use for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

import torch

# Of torch's function that calls the engine, and of the one that knows what the engine is at; a torch without them: never.
_engines = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
_present_node = getattr(torch._C, "_current_autograd_node", None)


class _AtEnd:
    """Runs `action` when the engine calls it, or `instead` when the engine lets go of it since the backward has failed."""

    def __init__(self, action: Callable[[], object], instead: Callable[[], object]) -> None:
        self._action = action
        self._instead: Callable[[], object] | None = instead

    def __call__(self) -> None:
        self._action()
        self._instead = None  # not if it was interrupted

    def __del__(self) -> None:
        if self._instead is not None:
            self._instead()


def run_at_end(caller: FrameType | None, action: Callable[[], object], instead: Callable[[], object]) -> bool:
    """Has `action` run at the end of the present backward, or `instead` where that does not come to its end.

    False, and nothing will run, unless the engine itself has come to `caller`, the frame that asked, as it does by the
    reducer. Python code in between, a hook's, might wait for the future within the backward; a callback that waits at its
    end, as the reducer's in the first step of a static graph, has its turn before `action`; and a backward within another
    would end too early.
    """
    if _engines is None or caller is None or caller.f_code is not _engines:
        return False
    if _present_node is None or _present_node() is None:
        return False
    outer = caller.f_back
    while outer is not None:
        if outer.f_code is _engines:
            return False
        outer = outer.f_back
    torch.autograd.Variable._execution_engine.queue_callback(_AtEnd(action, instead))
    return True
