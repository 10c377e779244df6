"""When Horovod's timeline is recorded."""

from __future__ import annotations

import atexit
import os

from bimetal.horovod.core import world
from bimetal.horovod.core.request import Misuse
from bimetal.horovod.core.timeline import Timeline, running, set_running


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to record the collectives of rank 0 in a file of Chrome's trace format; on other ranks it does nothing.

    For each name there is a lane: how long the ranks took to agree on the collective, and how long it took.
    HOROVOD_TIMELINE names a file to record from init() on, HOROVOD_TIMELINE_MARK_CYCLES=1 says mark_cycles.

    Args:
        file_path: is written anew.
        mark_cycles: marks the beginning of each round of negotiation.

    Raises:
        ValueError: before init(), and while one is being recorded.
        bimetal.Error: ``system`` where the file cannot be written.
    """
    if world.current().rank != 0:
        return
    if running() is not None:
        raise Misuse("a timeline is being recorded already: call hvd.stop_timeline() first")
    set_running(Timeline(file_path, mark_cycles))
    atexit.register(stop_timeline)


def stop_timeline() -> None:
    """Ends the recording and completes the file; nothing where none is under way."""
    atexit.unregister(stop_timeline)
    timeline = running()
    if timeline is not None:
        set_running(None)
        timeline.close()


def start_as_the_environment_says() -> None:
    """For init(). ``DYNAMIC`` is Horovod's word for a timeline that start_timeline() is to begin."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path != "DYNAMIC" and running() is None:
        start_timeline(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))
