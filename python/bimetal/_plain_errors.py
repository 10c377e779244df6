"""The message of `python -m bimetal.command` if the package cannot be imported: one message and no traceback."""

from __future__ import annotations

import sys
from types import TracebackType


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, (ImportError, OSError)):
        return sys.__excepthook__(kind, error, trace)
    print(f"bimetal: error: the package cannot be imported: {error}\n"
          f"  While something builds, or where a build was interrupted, parts of it are missing or cut off: wait for its end, "
          f"or run `make python`, and try again", file=sys.stderr)
    return None
