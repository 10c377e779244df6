"""bimetal train and the other commands of the program: handed on to it, where the wheel bimetal-program is installed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import torch

from bimetal._errors import error

PACKAGE = "bimetal_program"
COMMANDS = ("bench", "checkpoint", "data", "demo", "devices", "ensemble", "evaluate", "export", "generate", "job", "join", "plan",
            "predict", "ray", "serve", "top", "train", "tune")


def run(words: list[str]) -> int:
    """The program takes this process's place.

    Raises:
        bimetal.Error: ``unsupported``, where the program is not installed, or not there for this system, or is for another
            torch.
    """
    program, environment = find(), dict(os.environ)
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    # The program looks beside itself; in an environment that has its torch elsewhere, there.
    if not (program.parents[1] / "torch" / "lib").is_dir():
        name = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
        environment[name] = os.pathsep.join(filter(None, [str(libraries), environment.get(name)]))
    environment.setdefault("BIMETAL_PYTHON", sys.executable)  # for the commands that are Python's
    sys.stdout.flush()
    os.execve(program, ["bimetal", *words], environment)


def find(system: str = sys.platform) -> pathlib.Path:
    if system == "win32":
        raise error("this is a command of the program, which is not there for Windows: use it in WSL2 (docs/windows.md)",
                    "unsupported")
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise error("this is a command of the program, which is not installed here: pip install 'bimetal[train]', or build it "
                    "from the sources (docs/install.md)", "unsupported")
    folder = pathlib.Path(found.submodule_search_locations[0])
    wanted, here = (folder / "torch_version").read_text().strip(), str(torch.__version__).split("+")[0]
    if here.split(".")[:2] != wanted.split("."):
        raise error(f"the program that is installed is for torch {wanted}, and torch {here} is here: pip install "
                    f"'torch=={wanted}.*'", "unsupported")
    return folder / "bimetal"
