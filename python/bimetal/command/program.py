"""bimetal train and the other commands of the program: handed on to it, from the wheel bimetal-program or from PATH; those that
need no torch to the one that lies in this wheel, where there is no other."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable

import torch

from bimetal._errors import Error, error
from bimetal._torch_check import how_to_get
from bimetal.command import lite

PACKAGE, VARIABLE = "bimetal_program", "BIMETAL_PROGRAM"
COMMANDS = ("bench", "checkpoint", "completion", "data", "demo", "devices", "ensemble", "evaluate", "export", "generate", "job", "join",
            "launch", "machines", "man", "plan", "predict", "ray", "runs", "serve", "top", "train", "tune")
# Those that are Python's: the program, where it is, hands them back.
_PYTHONS = ("data", "ensemble", "ray", "tune")


def run(words: list[str]) -> int:
    """The program, or Python's command, takes this process's place.

    Raises:
        bimetal.Error: ``unsupported``, where the program is not installed, or not there for this system, or is for another
            torch.
    """
    if _by_lite(words[0]) and not is_here():
        return lite.run(words)
    if words[0] in _PYTHONS:
        os.execv(sys.executable, [sys.executable, "-m", f"bimetal.{words[0]}", *words[1:]])
    program, environment = find(), dict(os.environ)
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    # That of the wheel looks beside itself; in an environment that has its torch elsewhere, there.
    if program.parent.name == PACKAGE and not (program.parents[1] / "torch" / "lib").is_dir():
        name = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
        environment[name] = os.pathsep.join(filter(None, [str(libraries), environment.get(name)]))
    environment.setdefault("BIMETAL_PYTHON", sys.executable)  # for the commands that are Python's
    sys.stdout.flush()
    os.execve(program, ["bimetal", *words], environment)


def find(wanted: str = "this is a command of the program") -> pathlib.Path:
    """The program of the wheel, else the one that PATH has.

    Args:
        wanted: the reason why it is needed, for the message.

    Raises:
        bimetal.Error: ``unsupported``, as ``run``.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        built = on_path()
        if built is None:
            raise error(f"{wanted}, which is not installed here: {how_to_get()}", "unsupported")
        return built
    folder = pathlib.Path(found.submodule_search_locations[0])
    fits, here = (folder / "torch_version").read_text().strip(), str(torch.__version__).split("+")[0]
    if here.split(".")[:2] != fits.split("."):
        raise error(f"the program that is installed is for torch {fits}, and torch {here} is here: pip install "
                    f"'torch=={fits}.*'", "unsupported")
    return folder / "bimetal"


def is_here(find: Callable[[], object] = find) -> bool:
    """Whether ``find``, or ``for_jobs``, finds it."""
    try:
        find()
    except Error:
        return False
    return True


def for_jobs() -> str:
    """The program that BIMETAL_PROGRAM names, else as ``find``, else that of the build folder with this package.

    Raises:
        bimetal.Error: ``unsupported``, if there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise error(f"{VARIABLE}={named} is no program that can be run here", "invalid_argument")
        return named
    if is_here():
        return str(find())
    built = pathlib.Path(__file__).parents[3] / "bimetal"  # build/bimetal beside build/python/bimetal
    if not (built.is_file() and os.access(built, os.X_OK)):
        raise error(f"a job file is trained by the program `bimetal`, which is neither installed, nor on PATH, nor named by {VARIABLE}: "
                    f"{how_to_get()}", "unsupported")
    return str(built)


def launcher() -> str:
    """The program for `launch`: as ``for_jobs`` or, if there is none, this wheel's."""
    return for_jobs() if is_here(for_jobs) or not lite.is_here() else str(lite.PROGRAM)


def _by_lite(command: str) -> bool:
    return command in lite.COMMANDS and lite.is_here()


def on_path() -> pathlib.Path | None:
    """The first `bimetal` of PATH that is no script, as the command of this package is."""
    for folder in os.get_exec_path():
        file = pathlib.Path(folder or ".", "bimetal")
        if file.is_file() and os.access(file, os.X_OK):
            with file.open("rb") as start:
                if start.read(2) != b"#!":
                    return file
    return None
