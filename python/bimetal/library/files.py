"""Files and folders that are whole or not there, whatever ends a process or a machine."""

from __future__ import annotations

import os
import pathlib

from bimetal.library.interface import check, error, lib, made, text_of


class TemporaryFolder:
    """A hidden folder beside `target` (.NAME.<16 hex digits>.tmp), locked while its process lives."""

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._handle = 0
        self._handle = made(lib.folder_new, os.fsencode(target))
        self.path = pathlib.Path(text_of(lib.folder_path, self._handle))

    def __del__(self) -> None:
        if lib is not None:  # the interpreter may be ending
            self.remove()

    def move_into_place(self) -> None:
        """Takes the target's place in one step; whatever stood there is gone. Its files must be on the disk."""
        if not self._handle:
            raise error("the temporary folder has been removed", "invalid_argument")
        check(lib.folder_move(self._handle))

    def remove(self) -> None:
        """Removes the folder with everything in it, unless it has been moved. In a forked process it does nothing."""
        handle, self._handle = self._handle, 0
        if handle:
            lib.folder_free(handle)


def remove_leftovers(folder: str | os.PathLike[str], name: str | None = None) -> None:
    """Removes the leftovers of killed processes for such targets in `folder`: for those whose names differ from `name`
    only in their numbers (``step-00000001``, ``step-20``), or for all."""
    check(lib.remove_leftovers(os.fsencode(folder), None if name is None else os.fsencode(name)))


def sync_path(path: str | os.PathLike[str]) -> None:
    """Returns when a file's contents, or the names in a folder, are on the disk."""
    check(lib.sync_path(os.fsencode(path)))


def write_file_atomically(path: str | os.PathLike[str], contents: str) -> None:
    """The old contents or the new, never a part; on the disk when it returns."""
    data = contents.encode()
    check(lib.write_file(os.fsencode(path), data, len(data)))
