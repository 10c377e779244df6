"""What a train loop prints, passed on line by line. Ray would send it to the driver among a good deal of its own."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from bimetal.runs.job_process import Mailbox


class Printed(io.TextIOBase):
    """Writes to another stream, and its whole lines to the mailbox as events of kind ``line``. Thread-safe.

    Of a line that is drawn over (``\\r``, as progress bars do) the last state counts.
    """

    def __init__(self, beneath: TextIO, mailbox: Mailbox):
        self._beneath = beneath
        self._mailbox = mailbox
        self._begun = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._beneath.write(text)
            *lines, begun = (self._begun + text).split("\n")
            for line in lines:
                self._put(line)
            self._begun = begun.removesuffix("\r").rpartition("\r")[2]
        return len(text)

    def flush(self) -> None:
        self._beneath.flush()

    def fileno(self) -> int:
        return self._beneath.fileno()

    def writable(self) -> bool:
        return True

    def end(self) -> None:
        """Passes on what has been begun."""
        with self._lock:
            if self._begun:
                self._put(self._begun)
            self._begun = ""

    def _put(self, line: str) -> None:
        self._mailbox.put("line", text=line.removesuffix("\r").rpartition("\r")[2])


@contextlib.contextmanager
def passed_on(mailbox: Mailbox) -> Iterator[None]:
    """Standard output and error of this process's Python code, until the end."""
    before = sys.stdout, sys.stderr
    streams = Printed(sys.stdout, mailbox), Printed(sys.stderr, mailbox)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.end()
