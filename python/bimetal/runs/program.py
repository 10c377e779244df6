"""Where the program `bimetal` is on this machine."""

from __future__ import annotations

import os
import pathlib
import shutil

from bimetal._errors import Error, error

VARIABLE = "BIMETAL_PROGRAM"


def find() -> str:
    """What BIMETAL_PROGRAM names, else the one of PATH, else the one of the build folder that this package lies in.

    Raises:
        bimetal.Error: ``unsupported``, if there is none.
    """
    import bimetal

    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise error(f"{VARIABLE}={named} is no program that can be run here", "invalid_argument")
        return named
    built = pathlib.Path(bimetal.__file__).parents[2] / "bimetal"  # build/bimetal beside build/python/bimetal
    found = shutil.which("bimetal") or (str(built) if built.is_file() and os.access(built, os.X_OK) else None)
    if not found:
        raise error(f"a job file is trained by the program `bimetal`, which is neither on PATH nor at {built}: run "
                    f"`make build` on this machine, or set {VARIABLE} to where it is", "unsupported")
    return found


def is_here() -> bool:
    """Whether ``find`` finds it."""
    try:
        find()
    except Error:
        return False
    return True
