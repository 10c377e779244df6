"""What the core warns of, as Python's warnings: it says nothing by itself."""

from __future__ import annotations

import atexit
import ctypes
import warnings

from bimetal.library.interface import lib

_Sink = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_LEVEL = b"warning"


@_Sink
def _warn(_context: int | None, _level: bytes, message: bytes) -> None:
    warnings.warn(f"bimetal: {message.decode(errors='replace')}", stacklevel=2)


def pass_warnings_on() -> None:
    """For the process, until it ends: from then on the core's threads must not come into Python."""
    lib.set_log(_LEVEL, ctypes.cast(_warn, ctypes.c_void_p), None)
    atexit.register(lib.set_log, _LEVEL, None, None)
