"""The C++ core, of which there is one in a process: the one within the extension ``bimetal._C`` where that was built for the
torch that is installed, else the shared library's. Both are called by the C interface (``bimetal.library``), so that the
process group, the sampler and the balancer are the same with any torch. What needs libtorch is the extension's alone.
"""

from __future__ import annotations

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
        require_extension("this call")


_torch_check.check_oldest()
if not _torch_check.fits():
    if _torch_check.has_extension():
        if not _torch_check.has_library():
            _torch_check.check()  # which says how to mend it
        warnings.warn(f"{_torch_check.misfit()} Until then the back end and the sampler work without the extension.", stacklevel=2)
    sys.modules["bimetal._C"] = _NoExtension("bimetal._C")

from bimetal import library as core  # noqa: E402

core.pass_warnings_on()


def require_extension(what: str) -> None:
    """Raises ImportError, which says what to do, where there is no extension for this torch: `what` needs one."""
    try:
        _torch_check.check()
    except ImportError as problem:
        raise ImportError(f"{what} needs bimetal's extension: {problem}") from None
