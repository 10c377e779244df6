"""Writes token files; src/bimetal/data/text/token_file.h describes the format."""

from __future__ import annotations

import array
import hashlib
import os
import pathlib
import struct
import sys
from collections.abc import Sequence
from types import TracebackType

_HEADER = struct.Struct("<8sIIQQQ")
_MAGIC = b"BMTOKENS"
_VERSION = 1
_DIGEST_BYTES = 32
_ALIGNMENT = 8


def width_of(vocabulary: int) -> int:
    """Bytes of a token."""
    return 2 if vocabulary <= 1 << 16 else 4


class TokenFileWriter:
    """A context that writes a file piece by piece. The file is whole once the context has ended without an error."""

    def __init__(self, path: pathlib.Path, vocabulary: int):
        self.tokens = 0
        self._vocabulary = vocabulary
        self._width = width_of(vocabulary)
        self._ends = array.array("Q")
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._file = open(path, "wb")
        self._file.write(bytes(_HEADER.size + _DIGEST_BYTES))  # filled in at the end, when it is known

    @property
    def documents(self) -> int:
        return len(self._ends)

    def add(self, ids: bytes | Sequence[int]) -> None:
        """More tokens of the current document; bytes are tokens of their values."""
        if isinstance(ids, bytes):
            raw = bytearray(self._width * len(ids))
            raw[::self._width] = ids
            self._write(raw)
        else:
            self._write(_little_endian(array.array("H" if self._width == 2 else "I", ids)))
        self.tokens += len(ids)

    def end_document(self) -> None:
        self._ends.append(self.tokens)

    def __enter__(self) -> TokenFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self._file:
            if kind is None:
                self._finish()

    def _write(self, raw: bytes | bytearray) -> None:
        self._hash.update(raw)
        self._file.write(raw)

    def _finish(self) -> None:
        self._write(bytes(-self.tokens * self._width % _ALIGNMENT))
        self._write(_little_endian(self._ends))
        header = _HEADER.pack(_MAGIC, _VERSION, self._width, self._vocabulary, self.tokens, self.documents)
        self._hash.update(header)
        self._file.seek(0)
        self._file.write(header + self._hash.digest())
        self._file.flush()
        os.fsync(self._file.fileno())


def _little_endian(numbers: array.array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
