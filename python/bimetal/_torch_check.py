"""Which torch goes with what is installed of the package. Refuses one that the extension was not built against, before
the loader does so in riddles."""

import importlib.util
import pathlib
import sys

import torch

from bimetal import _build

OLDEST = (2, 4)
LIBRARY = {"win32": "libbimetal_core.dll", "darwin": "libbimetal_core.dylib"}.get(sys.platform, "libbimetal_core.so")
NEWEST_TRIED = (2, 15)  # later ones are not refused: most work as they are


def series(version: str) -> str:
    """The part of a torch version within which its C++ interface stays: ``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in series(version).split("."))


def is_untried(installed: str = str(torch.__version__)) -> bool:
    """Whether this torch came out after this package was tested."""
    return _numbers(installed) > NEWEST_TRIED


_EXTENSION = importlib.util.find_spec("bimetal._C") if _build.TORCH else None


def has_extension() -> bool:
    return _EXTENSION is not None


def has_library() -> bool:
    return (pathlib.Path(__file__).parent / LIBRARY).exists()


def fits(installed: str = str(torch.__version__)) -> bool:
    """Whether there is an extension, and for this torch."""
    return has_extension() and series(installed) == series(_build.TORCH)


def core_path() -> pathlib.Path:
    """The file that has the core of this process."""
    if fits():
        return pathlib.Path(_EXTENSION.origin)
    return pathlib.Path(__file__).parent / LIBRARY


def check_oldest(installed: str = str(torch.__version__)) -> None:
    """Raises ImportError for a torch that is too old."""
    if _numbers(installed) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ImportError(f"bimetal {_build.VERSION} needs torch {wanted} or later, but torch {installed} is installed: "
                          f"pip install --upgrade torch")


def misfit(installed: str = str(torch.__version__)) -> str:
    """Why the extension is of no use with this torch, and what to do."""
    return (
        f"bimetal {_build.VERSION} was built against torch {series(_build.TORCH)}, but torch {installed} is "
        f"installed: libtorch's C++ interface differs between the two. Either install torch "
        f"{series(_build.TORCH)}.*, or build bimetal anew against this one from a clone of its sources: "
        f"pip install --no-build-isolation --force-reinstall --no-deps .")


def check(installed: str = str(torch.__version__)) -> None:
    """Raises ImportError if ``installed`` is not of the series that the extension was built against."""
    if not _build.TORCH:
        raise ImportError("no wheel has it. In a clone of the sources, with a C++20 compiler: pip install --no-build-isolation . "
                          "(docs/install.md)")
    if series(installed) != series(_build.TORCH):
        raise ImportError(misfit(installed))
