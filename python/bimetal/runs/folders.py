"""Folders of files as checkpoints are: copied whole or not at all, here and between machines."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

from bimetal._errors import error

_CHUNK = 2 << 20  # bytes in one call


def copy_whole(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copies a folder so that its name appears when it is complete."""
    with _whole(target) as aside:
        shutil.copytree(source, aside, dirs_exist_ok=True)
    return target


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


def receive_whole(files: list[tuple[str, int]], fetch: Callable[[str, int], bytes],
                  target: pathlib.Path) -> pathlib.Path:
    """Fetches the files of a folder elsewhere, piece by piece; the folder's name appears when it is complete.

    Args:
        files: names and sizes, as of ``listing``.
        fetch: gives the piece of a file that begins at an offset.
    """
    with _whole(target) as aside:
        for name, size in files:
            offset = 0
            write(aside, name, 0, b"")
            while offset < size:
                piece = fetch(name, offset)
                if not piece:
                    raise FileNotFoundError(name)  # somebody has shortened it
                write(aside, name, offset, piece)
                offset += len(piece)
    return target


def inside(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The path of a file in a folder. bimetal.Error for a name that would lead out of it."""
    parts = pathlib.PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name:
        raise error(f"{name!r} does not lie within the folder", "invalid_argument")
    return folder.joinpath(*parts.parts)


def make_scratch(prefix: str) -> pathlib.Path:
    """A folder for this process, in the system's temporary one; those of processes that are gone are removed.

    Args:
        prefix: of its name, and of those that are looked through, such as ``bimetal-ray-``.
    """
    for old in pathlib.Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = old.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


def keep_newest(folder: pathlib.Path, pattern: str, keep: int) -> None:
    """Removes all but the ``keep`` folders of a pattern that were written last."""
    for old in sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def _whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A hidden folder beside the target: takes its place at the end, and is removed where it does not come to that."""
    aside = target.parent / f".{target.name}.{os.urandom(4).hex()}.tmp"
    aside.mkdir(parents=True)
    try:
        yield aside
        if target.exists():
            shutil.rmtree(target)
        os.utime(aside)  # its age counts from now, and not from that of what was copied
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
