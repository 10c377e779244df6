"""Which half of the package does the work: the extension ``bimetal._C``, where it was built for the torch that is
installed, or the shared library by ``bimetal.library``, which fits any.

``BIMETAL_HALF`` = ``extension`` or ``library`` asks for one. What both have, the package takes from ``core``.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from typing import Any

from bimetal import _torch_check


class _NoExtension(types.ModuleType):
    """In the place of an extension that does not fit: whatever of the package needs it is told what to do."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _torch_check.check()


def _choose() -> tuple[str, Any]:
    asked = os.environ.get("BIMETAL_HALF", "")
    if asked not in ("", "extension", "library"):
        raise ImportError(f"BIMETAL_HALF is '{asked}', which is neither extension nor library")
    _torch_check.check_oldest()
    if asked != "library" and (asked or _torch_check.fits()):
        _torch_check.check()
        return "extension", importlib.import_module("bimetal._C")
    if not asked and _torch_check.has_extension() and not _torch_check.has_library():
        _torch_check.check()  # which says how to mend it
    if not asked and _torch_check.has_extension():
        warnings.warn(f"{_torch_check.misfit()} Until then the back end and the sampler work without the extension.", stacklevel=2)
    if not _torch_check.fits():
        sys.modules["bimetal._C"] = _NoExtension("bimetal._C")
    library = importlib.import_module("bimetal.library")
    library.pass_warnings_on()
    return "library", library


half, core = _choose()


def require_extension(what: str) -> None:
    """Raises ImportError, which says what to do, where the library does the work: it has no part in `what`."""
    if half == "extension":
        return
    _torch_check.check()
    raise ImportError(f"{what} needs the extension, which is there: leave out BIMETAL_HALF=library")
