"""``python -m bimetal.trackers``, which `bimetal train` starts: the task is one line of JSON on standard input, and a second one says how
the job has ended. Lines on standard output are for people; empty ones say that this process is there."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from typing import Any, TextIO

from bimetal.trackers import figures
from bimetal.trackers.feed import Feed
from bimetal.trackers.kinds import KINDS
from bimetal.trackers.reader import Monitor

_SIGN_SECONDS = 0.5
_LAST_LOOK_SECONDS = 2.0  # for the monitor's last figures
_OLD_SECONDS = 0.6  # so old may be a status that has just come: it is sent twice a second, and made a moment before
_TO_TIDY_SECONDS = 2.0
_TO_END_SECONDS = 25.0  # for all trackers together, when the job has ended


def main() -> int:
    say = _own_output()
    task = json.loads(sys.stdin.readline())
    _keep_quiet(task["folder"])
    threading.Thread(target=_make_signs, args=(say,), daemon=True).start()
    os.nice(5)  # the job's computation goes first
    feeds = [Feed(name, KINDS[name], task, lambda line: _say(say, line)) for name in task["trackers"]]
    ended: dict[str, Any] = {}
    monitor = Monitor(task["address"], task["token"])
    threading.Thread(target=_wait_for_end, args=(ended, monitor), daemon=True).start()
    run = figures.Run(task["folder"] if task["checkpoints"] else "")
    for kind, data in monitor.events():
        for item in run.take(kind, data):
            for feed in feeds:
                feed.put(item)
        if ended and time.monotonic() > ended["at"] + (_OLD_SECONDS if kind == "status" else _LAST_LOOK_SECONDS):
            break
    until = time.monotonic() + _TO_END_SECONDS
    for feed in feeds:
        feed.end(ended.get("how", "failed"))
    for feed in feeds:
        feed.join(until)
    return 0


def _own_output() -> TextIO:
    """The former standard output. From now on that is standard error's, since trackers like to print."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    return own


def _keep_quiet(folder: str) -> None:
    """The trackers' output goes into a file beside the checkpoints."""
    if folder:
        os.makedirs(folder, exist_ok=True)
    log = os.open(os.path.join(folder, "trackers.log") if folder else os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)


_saying = threading.Lock()


def _say(output: TextIO, line: str) -> None:
    with _saying:
        output.write(" ".join(line.split()) + "\n")
        output.flush()


def _make_signs(output: TextIO) -> None:
    while True:
        try:
            _say(output, "")
        except (OSError, ValueError):
            os._exit(1)  # nobody is there any more
        time.sleep(_SIGN_SECONDS)


def _wait_for_end(ended: dict[str, Any], monitor: Monitor) -> None:
    """The second line, or that rank 0 is gone."""
    line = sys.stdin.readline()
    ended.update(how=json.loads(line)["end"] if line else "failed", at=time.monotonic())
    monitor.end()


if __name__ == "__main__":
    try:
        status = main()
        tidying = threading.Thread(target=atexit._run_exitfuncs, daemon=True)  # trackers' temporary files
        tidying.start()
        tidying.join(_TO_TIDY_SECONDS)
    except Exception as problem:  # all that goes wrong here is one line of the job's output
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stderr.flush()
    os._exit(status)  # a tracker's threads may hang
