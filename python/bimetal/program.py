"""The program ``bimetal`` inside of a Python process: ``python -m bimetal.program train job.toml``.

The program starts this by itself for ranks whose task is written in Python (``[model] python``, docs/tasks.md).
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

_MOST_OF_LINE = 500  # characters that are handed on


class _Heard(io.TextIOBase):
    """A stream that is what it was, and whose lines those read, too, who watch the job (docs/monitoring.md)."""

    def __init__(self, stream: TextIO, tell: Callable[[str], None]):
        self._stream, self._tell, self._begun = stream, tell, ""

    def write(self, text: str) -> int:
        *lines, rest = (self._begun + text).split("\n")
        self._begun = rest[-_MOST_OF_LINE:]
        for line in lines:
            if line.strip():
                self._tell(line[-_MOST_OF_LINE:])
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def __getattr__(self, name: str) -> Any:  # buffer and the like
        return getattr(self._stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


def main() -> int:
    try:
        from bimetal import _program
    except ImportError as missing:
        print(f"bimetal: this package has no module for tasks written in Python, which is in no wheel: build it in a clone of the sources "
              f"(make python; docs/install.md) ({missing})",
              file=sys.stderr)
        return 3
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program has handlers of its own
    sys.stdout, sys.stderr = (_Heard(stream, _program.note_output) for stream in (sys.stdout, sys.stderr))
    return _program.run(["bimetal", *sys.argv[1:]])


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own way out waits for threads and frees modules in an order that torch's do not survive.
    os._exit(status)
