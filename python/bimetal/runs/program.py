"""Where the program `bimetal` is on this machine."""

from __future__ import annotations

import os
import pathlib

from bimetal._errors import Error, error
from bimetal.command import program

VARIABLE = "BIMETAL_PROGRAM"


def find() -> str:
    """What BIMETAL_PROGRAM names, else that of the wheel or of PATH, else that of the build folder that this package lies in.

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
    if program.is_here():
        return str(program.find())
    if not (built.is_file() and os.access(built, os.X_OK)):
        raise error(f"a job file is trained by the program `bimetal`, which is neither on PATH nor at {built}: run "
                    f"`make build` on this machine, or set {VARIABLE} to where it is", "unsupported")
    return str(built)


def is_here() -> bool:
    """Whether ``find`` finds it."""
    try:
        find()
    except Error:
        return False
    return True
