"""A Ray node as a child process: what `python -m bimetal.ray up` and `join` start. Not for people.

Its arguments are ``head`` or ``joined``, the address of the head node, the seconds that jobs have to leave a head
node, and then those of `ray start`. It runs until SIGTERM, or until standard input ends, which it does when the parent
is gone: no node outlives the command that has started it. A node that has joined leaves with its head node, and says
why.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import signal
import sys
import threading
import time
from typing import Any

LEFT = "bimetal.ray has left: "  # begins the message of a node that leaves with its head node: ENDED or GONE, and the
                                 # reason
ENDED, GONE = "ended ", "gone "


def _beside(name: str) -> Any:
    """A module of this folder that uses nothing of the package, which would import torch: no node needs that yet."""
    spec = importlib.util.spec_from_file_location(f"bimetal_ray_{name}", pathlib.Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _leave_out_dashboard() -> None:
    """Ray's dashboard and its agents listen on every address of the machine, where their libraries are installed."""
    import ray._private.utils

    if hasattr(ray._private.utils, "get_dashboard_dependency_error"):
        ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("left out by bimetal.ray")


def _until_parent_ends() -> None:
    while os.read(sys.stdin.fileno(), 1):  # the buffered one holds a lock that the interpreter's end would want
        pass


def _end(by_drain: bool) -> None:
    """As `ray start` does on SIGTERM: its drain tells the rest of the cluster and waits, where there still is one."""
    import ray._private.ray_constants

    if not by_drain:
        ray._private.ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S = 0
    os.kill(os.getpid(), signal.SIGTERM)


def _be_head(head: Any, address: str, seconds: float) -> None:
    """Ends the cluster with this node, once its jobs have left."""
    ending = threading.Event()
    threading.Thread(target=lambda: (_until_parent_ends(), ending.set()), daemon=True).start()
    while not head.listens(address):
        if ending.wait(0.1):
            return _end(by_drain=False)
    while not ending.is_set():
        try:
            head.announce(address)
            break
        except Exception:  # of Ray's many kinds: it is busy still
            ending.wait(0.5)
    ending.wait()
    try:
        if head.listens(address):
            head.let_jobs_leave(address, seconds)
    finally:
        _end(by_drain=False)


def _follow_head(head: Any, address: str) -> None:
    threading.Thread(target=lambda: (_until_parent_ends(), _end(by_drain=True)), daemon=True).start()
    news = head.News(address)
    while not news.gone:
        time.sleep(0.5)
        news.look()
    print(f"{LEFT}{ENDED if news.ended else GONE}{news.over}", flush=True)
    _end(by_drain=False)


def main() -> None:
    role, address, seconds, *arguments = sys.argv[1:]
    _leave_out_dashboard()
    head = _beside("head")
    what = (_be_head, (head, address, float(seconds))) if role == "head" else (_follow_head, (head, address))
    threading.Thread(target=what[0], args=what[1], daemon=True).start()
    from ray.scripts.scripts import start

    start.main(args=[*arguments, "--block"], prog_name="ray start")


if __name__ == "__main__":
    main()
