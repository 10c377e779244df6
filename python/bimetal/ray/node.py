"""A Ray node as a child process: what `python -m bimetal.ray up` and `join` start. Not for people.

Its arguments are ``head`` or ``joined``, the address of the head node, the seconds that jobs have to leave a head node,
and then those of `ray start`. It runs until SIGTERM, or until standard input ends, which it does when the parent is gone:
no node outlives the command that has started it. It also ends with Ray's own processes, and one that has joined leaves
with its head node; then it says why.
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

LEFT = "bimetal.ray has left: "  # begins what a node says that ends by itself: ENDED or GONE, and why
ENDED, GONE = "ended ", "gone "
_RAY_SECONDS = 3.0  # in which `ray start` has seen whether its processes have failed, and then says so itself


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
    while sys.stdin.buffer.read(1):
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
    try:
        head.announce(address)
        ending.wait()
        head.let_jobs_leave(address, seconds)
    finally:
        ending.wait()
        _end(by_drain=False)


def _follow_head(head: Any, address: str) -> None:
    threading.Thread(target=lambda: (_until_parent_ends(), _end(by_drain=True)), daemon=True).start()
    news = head.News(address)
    while not news.gone:
        time.sleep(0.5)
        news.look()
    _leave(ENDED if news.ended else GONE, news.over)


def _leave(how: str, why: str) -> None:
    print(f"{LEFT}{how}{why}", flush=True)
    _end(by_drain=False)


def _follow_ray(needed: set[str]) -> None:
    """Ends when Ray's processes have been ended: `ray start` minds those alone that fail."""
    import psutil

    seen: set[str] = set()
    while True:
        time.sleep(0.5)
        running = {child.name() for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}
        if needed & seen - running:
            time.sleep(_RAY_SECONDS)
            return _leave(ENDED, "Ray was ended on this machine, by `ray stop` perhaps")
        seen |= running


def main() -> None:
    role, address, seconds, *arguments = sys.argv[1:]
    _leave_out_dashboard()
    head = _beside("head")
    threads = [threading.Thread(target=_follow_ray, args=({"raylet", "gcs_server"},), daemon=True)]
    if role == "head":
        threads.append(threading.Thread(target=_be_head, args=(head, address, float(seconds)), daemon=True))
    else:
        threads.append(threading.Thread(target=_follow_head, args=(head, address), daemon=True))
    for thread in threads:
        thread.start()
    from ray.scripts.scripts import start

    start.main(args=[*arguments, "--block"], prog_name="ray start")


if __name__ == "__main__":
    main()
