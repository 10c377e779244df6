"""Folders of files as checkpoints are: copied whole or not at all, here and between machines."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterator

from bimetal._errors import error
from bimetal.library.files import TemporaryFolder, remove_leftovers, sync_path

_CHUNK = 2 << 20  # bytes in one call


def copy_whole(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copies a folder: as receive_whole, from this machine."""
    return receive_whole(listing(source), functools.partial(read, source), target)


def listing(folder: pathlib.Path) -> list[tuple[str, int]]:
    """All files of a folder, by relative path, and their sizes in bytes. FileNotFoundError if it is gone."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    return [(path.relative_to(folder).as_posix(), path.stat().st_size)
            for path in sorted(folder.rglob("*")) if path.is_file()]


def read(folder: pathlib.Path, name: str, offset: int) -> bytes:
    """The next piece of a file; empty at its end."""
    with open(inside(folder, name), "rb") as file:
        file.seek(offset)
        return file.read(_CHUNK)


def write(folder: pathlib.Path, name: str, offset: int, piece: bytes) -> None:
    """Puts a piece of a file into its place; an offset of 0 begins the file."""
    path = inside(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(piece)


def pieces(folder: pathlib.Path, name: str) -> Iterator[tuple[int, bytes]]:
    """A file in pieces, with their offsets; an empty one is one empty piece."""
    offset = 0
    while True:
        piece = read(folder, name, offset)
        if piece or not offset:
            yield offset, piece
        if len(piece) < _CHUNK:
            return
        offset += len(piece)


def receive_whole(files: list[tuple[str, int]], fetch: Callable[[str, int], bytes], target: pathlib.Path,
                  complete: Callable[[pathlib.Path], None] | None = None) -> pathlib.Path:
    """Fetches the files of a folder elsewhere, piece by piece; the folder's name appears when all is on the disk.

    Args:
        files: names and sizes, as of ``listing``.
        fetch: gives the piece of a file that begins at an offset.
        complete: is called with the folder before it gets its name; what it raises ends this.
    """
    with whole(target) as aside:
        for name, size in files:
            offset = 0
            write(aside, name, 0, b"")
            while offset < size:
                piece = fetch(name, offset)
                if not piece:
                    raise FileNotFoundError(name)  # somebody has shortened it
                write(aside, name, offset, piece)
                offset += len(piece)
        if complete:
            complete(aside)
    return target


@contextlib.contextmanager
def whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A hidden folder beside the target: brought to the disk and put into its place at the end, in one step, or removed
    after an error. Leftovers of killed processes for targets of this kind are cleared away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Aside(target)
    with made as folder:
        yield folder
        for path in folder.rglob("*"):
            sync_path(path)
        made.move_into_place()


def remove_whole(folder: pathlib.Path) -> None:
    """Removes a folder so that its name never stands for a part of it."""
    with Aside(folder) as grave:
        folder.rename(grave)


def inside(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The path of a file in a folder. bimetal.Error for a name that would lead out of it."""
    parts = pathlib.PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name:
        raise error(f"{name!r} does not lie within the folder", "invalid_argument")
    return folder.joinpath(*parts.parts)


class Aside:
    """A hidden folder beside a target, as the core's own under construction: locked while its process lives and removed
    in the end, unless it has been moved into the target's place. Leftovers of killed processes for this target and
    others of its kind (``step-00000001``, ``step-00000002``) are cleared away first.

    Args:
        target: the path that it will become, or is named after.

    Attributes:
        path: where it is.
    """

    def __init__(self, target: pathlib.Path):
        remove_leftovers(target.parent, target.name)
        self._folder = TemporaryFolder(target)
        self.path = self._folder.path

    def move_into_place(self) -> None:
        """All that is in it must be on the disk."""
        self._folder.move_into_place()

    def remove(self) -> None:
        self._folder.remove()

    def __enter__(self) -> pathlib.Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def scratch(name: str) -> Aside:
    """A folder for this process alone, in the system's temporary one. ``name``: part of its own, for those of a kind."""
    made = Aside(pathlib.Path(tempfile.gettempdir(), name))
    made.path.chmod(0o700)
    return made
