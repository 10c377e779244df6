"""The program ``bimetal`` inside of a Python process: ``python -m bimetal.program train job.toml``.

The program starts this by itself for ranks whose task is written in Python (``[model] python``, docs/tasks.md).
"""

from __future__ import annotations

import os
import signal
import sys

from bimetal import _C, _torch_check
from bimetal._heard import Heard


def main() -> int:
    try:
        _torch_check.require_torch_library("a task written in Python")
    except ImportError as missing:
        print(f"bimetal: {missing}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program has handlers of its own
    sys.stdout, sys.stderr = (Heard(stream, _C.note_output) for stream in (sys.stdout, sys.stderr))
    return _C.run_program(["bimetal", *sys.argv[1:]])


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own way out waits for threads and frees modules in an order that torch's do not survive.
    os._exit(status)
