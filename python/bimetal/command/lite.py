"""What of the program needs no torch: bimetal_lite, a program that lies in the wheels beside the library."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

COMMANDS = ("bench", "top")  # and on Windows launch, which elsewhere is Python's
_PROGRAM = pathlib.Path(__file__).parents[1] / ("bimetal_lite.exe" if sys.platform == "win32" else "bimetal_lite")


def is_here() -> bool:
    return _PROGRAM.is_file()


def run(words: list[str], environment: dict[str, str] | None = None) -> int:
    """It takes this process's place, or on Windows, which lets no program do that, is waited for.

    Args:
        environment: for it, where that is not this process's.
    """
    environment = dict(os.environ) if environment is None else environment
    sys.stdout.flush()
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
        return subprocess.call([str(_PROGRAM), *words], env=environment)
    os.execve(_PROGRAM, ["bimetal", *words], environment)
