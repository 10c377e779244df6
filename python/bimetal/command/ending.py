"""How a command ends: its error message, and its status (docs/errors.md)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bimetal._errors import EXIT_STATUSES, INTERRUPTED, Error


def status_of(command: Callable[[], int]) -> int:
    """The exit status of the process whose work is ``command``, which returns one itself if nothing is wrong."""
    try:
        return command()
    except (Error, OSError) as problem:
        print(f"bimetal: error: {problem}", file=sys.stderr)
        return EXIT_STATUSES.get(problem.code, 1) if isinstance(problem, Error) else EXIT_STATUSES["system"]
    except KeyboardInterrupt:
        return INTERRUPTED
