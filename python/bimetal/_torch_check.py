"""Which torch goes with the installed parts of the package. Refuses a torch that the torch library was not built
against, before the loader does so in riddles."""

import importlib.util
import pathlib
import platform
import sys

import torch

from bimetal import _build

OLDEST = (2, 4)
LIBRARY = {"win32": "libbimetal_core.dll", "darwin": "libbimetal_core.dylib"}.get(sys.platform, "libbimetal_core.so")
TORCH_LIBRARY = "libbimetal_torch.dylib" if sys.platform == "darwin" else "libbimetal_torch.so"
# The platforms with wheels of the program and the torch library; scripts/make_wheel.py tells pip.
WHEELS_OF_PROGRAM = {("linux", "x86_64"), ("darwin", "arm64")}
NEWEST_TRIED = (2, 15)  # later ones are not refused: most work as they are


def series(version: str) -> str:
    """The part of a torch version within which its C++ interface stays: ``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in series(version).split("."))


def is_untried(installed: str = str(torch.__version__)) -> bool:
    """Whether this torch came out after this package was tested."""
    return _numbers(installed) > NEWEST_TRIED


def _find() -> tuple[pathlib.Path | None, str]:
    """The torch library and the torch that it is for: the one that was built with this package, else the wheel bimetal-program's."""
    if _build.TORCH:
        return pathlib.Path(__file__).parent / TORCH_LIBRARY, _build.TORCH
    wheel = importlib.util.find_spec("bimetal_program")
    if wheel is not None and wheel.submodule_search_locations:
        folder = pathlib.Path(wheel.submodule_search_locations[0])
        if (folder / TORCH_LIBRARY).exists():
            return folder / TORCH_LIBRARY, (folder / "torch_version").read_text().strip()
    return None, ""


_FILE, _TORCH = _find()


def has_torch_library() -> bool:
    return _FILE is not None


def has_library() -> bool:
    return (pathlib.Path(__file__).parent / LIBRARY).exists()


def fits(installed: str = str(torch.__version__)) -> bool:
    """Whether there is a torch library, and for this torch."""
    return has_torch_library() and series(installed) == series(_TORCH)


def core_path() -> pathlib.Path:
    """The file that has the core of this process: the torch library, where that fits."""
    if _FILE is not None and fits():
        return _FILE
    return pathlib.Path(__file__).parent / LIBRARY


def check_oldest(installed: str = str(torch.__version__)) -> None:
    """Raises ImportError for a torch that is too old."""
    if _numbers(installed) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ImportError(f"bimetal {_build.VERSION} needs torch {wanted} or later, but torch {installed} is installed: "
                          f"pip install --upgrade torch")


def misfit(installed: str = str(torch.__version__)) -> str:
    """Why the torch library is of no use with this torch, and what to do."""
    other = ("build bimetal anew against this one from a clone of its sources: pip install --no-build-isolation --force-reinstall "
             "--no-deps ." if _build.TORCH else "the one for this torch: pip install --upgrade 'bimetal[train]'")
    return (f"bimetal {_build.VERSION} was built against torch {series(_TORCH)}, but torch {installed} is installed: libtorch's C++ "
            f"interface differs between the two. Either install torch {series(_TORCH)}.*, or {other}")


def check(installed: str = str(torch.__version__)) -> None:
    """Raises ImportError if there is no torch library for ``installed``."""
    if not has_torch_library():
        raise ImportError(f"it is not installed here: {how_to_get()}")
    if not fits(installed):
        raise ImportError(misfit(installed))


def require_torch_library(what: str) -> None:
    """Raises ImportError, which says what to do, where there is none for this torch: `what` needs one."""
    try:
        check()
    except ImportError as problem:
        raise ImportError(f"{what} needs bimetal's torch library: {problem}") from None


def how_to_get(system: str = sys.platform, machine: str = "") -> str:
    """How to get the program and the torch library on this platform, or on the one named as Python names it."""
    machine = machine or platform.machine()
    if (system, machine) in WHEELS_OF_PROGRAM:
        return ("pip install --find-links FOLDER 'bimetal[train]', with the folder that has the wheels, or build it from the sources "
                "(docs/install.md)")
    if system == "win32":
        return "there is none for Windows itself; in WSL2 it is Linux's (docs/windows.md)"
    return f"there is no wheel of it for {system} on {machine}: build it from the sources (docs/install.md)"
