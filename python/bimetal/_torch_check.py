"""Refuses a torch that the extension was not built against, before the loader does so in riddles."""

import torch

from bimetal import _build


def series(version: str) -> str:
    """The part of a torch version within which its C++ interface stays: ``2.13`` of ``2.13.0+cpu``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check(installed: str = str(torch.__version__)) -> None:
    """Raises ImportError if ``installed`` is not of the series that the extension was built against."""
    if series(installed) == series(_build.TORCH):
        return
    raise ImportError(
        f"bimetal {_build.VERSION} was built against torch {series(_build.TORCH)}, but torch {installed} is "
        f"installed: libtorch's C++ interface differs between the two. Either install torch "
        f"{series(_build.TORCH)}.*, or build bimetal anew against this one from a clone of its sources: "
        f"pip install --no-build-isolation --force-reinstall --no-deps .")
