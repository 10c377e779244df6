"""The part of the program that needs no torch: bimetal_lite, which is in the wheels beside the library, or in a build
folder. It starts the ranks of `bimetal launch`, too."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

AGENT = "launch-agent"  # which a launcher on another machine starts here
COMMANDS = ("bench", "launch", *(() if sys.platform == "win32" else ("join", "machines")), AGENT, "top")
_NAME = "bimetal_lite.exe" if sys.platform == "win32" else "bimetal_lite"
_PLACES = (pathlib.Path(__file__).parents[1] / _NAME, pathlib.Path(__file__).parents[3] / "capi" / _NAME)
PROGRAM = next((path for path in _PLACES if path.is_file()), _PLACES[0])


def is_here() -> bool:
    return PROGRAM.is_file()


def run(words: list[str]) -> int:
    """It takes this process's place, or on Windows, which lets no program do that, is waited for: a launcher ends with it then."""
    sys.stdout.flush()
    defaults = {"BIMETAL_PYTHON": sys.executable}  # for scripts as ranks
    if sys.platform != "win32":
        os.execve(PROGRAM, ["bimetal", *words], {**defaults, **os.environ})
    if words[0] == "launch":
        words = ["launch", "--front", str(os.getpid()), *words[1:]]
    # torch's wheels for Windows have no libuv; and what Python prints into a pipe is in no encoding that others know.
    defaults |= {"USE_LIBUV": "0", "PYTHONIOENCODING": "utf-8"}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
    return subprocess.call([str(PROGRAM), *words], env={**defaults, **os.environ})
