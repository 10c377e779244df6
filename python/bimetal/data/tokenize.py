"""`bimetal data tokenize`: text files to a folder of token files, which appears whole or not at all.
src/bimetal/data/text/token_set.h describes the format."""

from __future__ import annotations

import array
import dataclasses
import hashlib
import os
import pathlib
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import BinaryIO

from bimetal._errors import Error
from bimetal.data import tokenizers
from bimetal.data.tokenizers import Tokenizer
from bimetal.pool import command
from bimetal.pool.command import Screen, clock
from bimetal.runs import folders

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


# Longer documents are tokenized in pieces, which end where a line ends, so that memory is bounded.
_PIECE_BYTES = 4 << 20
# So much is tokenized at once, on all cores.
_BATCH_BYTES = 4 * _PIECE_BYTES
_CHARACTER_BYTES = 3  # most that a character of UTF-8 goes on for


@dataclasses.dataclass
class Request:
    files: Sequence[pathlib.Path]
    tokenizer: str
    out: pathlib.Path
    test_fraction: float = 0.0
    separator: str = ""
    json: bool = False  # the result is told as JSON


@dataclasses.dataclass
class _Piece:
    file: pathlib.Path
    begin: int  # in the file
    text: bytes
    writer: TokenFileWriter
    ends_document: bool


def tokenize(request: Request) -> int:
    """Tokenizes, tells the result, and returns an exit status. bimetal.Error names the file that it cannot take."""
    command.require_new(request.out)
    tokenizer = tokenizers.load(request.tokenizer)
    sizes = [_size_of(file) for file in request.files]
    screen = Screen(request.json)
    try:
        with folders.whole(request.out.absolute()) as folder:
            (folder / tokenizers.FILE_NAME).write_text(tokenizer.description(), encoding="utf-8")
            with TokenFileWriter(folder / "train.tokens", tokenizer.vocabulary) as train, \
                    TokenFileWriter(folder / "test.tokens", tokenizer.vocabulary) as test:
                _write_all(request, tokenizer, train, test, _Progress(screen, sum(sizes)))
                if train.tokens < 2:
                    raise Error(f"the text makes {train.tokens} tokens to train on: there is nothing to learn from it",
                                "invalid_argument")
    except OSError as bad:
        raise Error(f"cannot write '{request.out}': {bad.strerror or bad}", "system") from bad
    finally:
        screen.clear()
    if request.json:
        command.print_json({"path": str(request.out), "train_tokens": train.tokens, "train_documents": train.documents,
                            "test_tokens": test.tokens, "vocabulary": tokenizer.vocabulary})
    else:
        screen.say(f"{request.out}: {train.tokens} tokens of {train.documents} documents to train on, {test.tokens} to "
                   f"test with; vocabulary {tokenizer.vocabulary}")
    return 0


def _size_of(file: pathlib.Path) -> int:
    try:
        if file.is_dir():
            raise Error(f"'{file}' is a folder: name its files", "invalid_argument")
        with open(file, "rb") as text:
            return os.fstat(text.fileno()).st_size
    except OSError as bad:
        raise Error(f"cannot read '{file}': {bad.strerror}", "invalid_argument") from None


class _Progress:
    def __init__(self, screen: Screen, total: int):
        self._screen, self._total, self._done, self._began = screen, total, 0, time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        left = (time.monotonic() - self._began) * (self._total - self._done) / max(self._done, 1)
        self._screen.show(f"tokenizing: {100 * self._done // max(self._total, 1)} %, {clock(left)} left")


def _write_all(request: Request, tokenizer: Tokenizer, train: TokenFileWriter, test: TokenFileWriter,
               progress: _Progress) -> None:
    separator = tokenizer.encode([request.separator.encode()])[0] if request.separator else []
    batch: list[_Piece] = []
    for file in request.files:
        for piece in _pieces_of(file, request.test_fraction, train, test):
            batch.append(piece)
            if sum(len(waiting.text) for waiting in batch) >= _BATCH_BYTES:
                _write(batch, tokenizer, separator, progress)
                batch = []
    _write(batch, tokenizer, separator, progress)


def _pieces_of(file: pathlib.Path, test_fraction: float, train: TokenFileWriter,
               test: TokenFileWriter) -> Iterator[_Piece]:
    """A document: first the part for training, then the part for testing, cut at the end of a line."""
    with open(file, "rb") as text:
        size = os.fstat(text.fileno()).st_size
        text.seek(size - int(size * test_fraction))
        if test_fraction and text.tell() > 0:
            text.readline()
        cut = min(text.tell(), size)
        for writer, begin, end in ((train, 0, cut), (test, cut, size)):
            yield from _pieces_between(file, text, writer, begin, end)


def _pieces_between(file: pathlib.Path, text: BinaryIO, writer: TokenFileWriter, begin: int,
                    end: int) -> Iterator[_Piece]:
    text.seek(begin)
    while begin < end:
        piece = text.read(min(_PIECE_BYTES, end - begin))
        if begin + len(piece) < end:
            piece += text.readline(_PIECE_BYTES)  # a line may be longer than any piece
            piece += _rest_of_character(piece, text.read(_CHARACTER_BYTES))
            text.seek(begin + len(piece))
        if not piece:
            raise Error(f"'{file}' has become shorter while it was read", "invalid_argument")
        yield _Piece(file, begin, piece, writer, ends_document=begin + len(piece) >= end)
        begin += len(piece)


def _rest_of_character(piece: bytes, following: bytes) -> bytes:
    """The bytes behind a piece that belong to a character of UTF-8 that begins in it."""
    if piece.endswith(b"\n"):
        return b""
    count = 0
    while count < len(following) and following[count] & 0xC0 == 0x80:
        count += 1
    return following[:count]


def _write(batch: Sequence[_Piece], tokenizer: Tokenizer, separator: bytes | list[int],
           progress: _Progress) -> None:
    try:
        encoded = tokenizer.encode([piece.text for piece in batch])
    except UnicodeDecodeError:
        raise _not_utf8(batch) from None
    for piece, tokens in zip(batch, encoded):
        piece.writer.add(tokens)
        if piece.ends_document:
            piece.writer.add(separator)
            piece.writer.end_document()
        progress.advance(len(piece.text))


def _not_utf8(batch: Sequence[_Piece]) -> Error:
    for piece in batch:
        try:
            piece.text.decode("utf-8")
        except UnicodeDecodeError as bad:
            return Error(f"'{piece.file}' is not UTF-8: byte {piece.begin + bad.start} is 0x{bad.object[bad.start]:02x}; "
                         "convert it, or take --tokenizer bytes", "invalid_argument")
    raise AssertionError("the tokenizer refused what is UTF-8")
