"""The one process set there is: all ranks."""

from __future__ import annotations

from typing import Any

from bimetal._errors import Error
from bimetal.horovod.core import world


class ProcessSet:
    """All ranks. Horovod's other process sets are not there."""

    process_set_id = 0

    def size(self) -> int:
        return world.current().size

    def rank(self) -> int:
        return world.current().rank

    def included(self) -> bool:
        return True


global_process_set = ProcessSet()


def require_all_ranks(process_set: Any) -> None:
    """Raises bimetal.Error ``unsupported`` for anything but all ranks."""
    if process_set is not None and process_set is not global_process_set:
        raise Error("process sets other than hvd.global_process_set are not there; use groups of torch.distributed "
                    "(new_group) for a part of the ranks", "unsupported")
