"""A Ray node as a child process: what `python -m bimetal.ray up` and `join` start. Not for people.

Its arguments are those of `ray start`. It runs until SIGTERM, or until standard input ends, which it does when the
parent is gone: no node outlives the command that has started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave_out_dashboard() -> None:
    """Ray's dashboard and its agents listen on every address of the machine, where their libraries are installed."""
    import ray._private.utils

    if hasattr(ray._private.utils, "get_dashboard_dependency_error"):
        ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("left out by bimetal.ray")


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _leave_out_dashboard()
    from ray.scripts.scripts import start

    start.main(args=[*sys.argv[1:], "--block"], prog_name="ray start")


if __name__ == "__main__":
    main()
