"""Turns text into tokens and back: each byte for itself, or by a tokenizer of Hugging Face's library."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Protocol

from bimetal._errors import Error

BYTES = "bytes"
FILE_NAME = "tokenizer.json"  # beside token files
_INSTALL = "pip install tokenizers"


class Tokenizer(Protocol):
    """One of a fixed vocabulary."""

    vocabulary: int

    def encode(self, texts: Sequence[bytes]) -> list[bytes] | list[list[int]]:
        """The tokens of each text, with nothing added. UnicodeDecodeError for one that it cannot take."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Bytes that cannot be decoded (half a character at the end) become U+FFFD."""

    def description(self) -> str:
        """The contents of the file beside token files: load() makes the same tokenizer of it."""


class ByteTokenizer:
    vocabulary = 256

    def encode(self, texts: Sequence[bytes]) -> list[bytes]:
        return list(texts)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")

    def description(self) -> str:
        return json.dumps(BYTES)


class HuggingFaceTokenizer:
    def __init__(self, path: pathlib.Path, text: str):
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            raise Error(f"'{path}' needs Hugging Face's tokenizers, which is not installed here: {_INSTALL}; or take "
                        "--tokenizer bytes", "unsupported") from None
        self._text = text
        try:
            self._tokenizer = Library.from_str(text)
        except Exception as bad:  # the library raises Exception itself
            raise Error(f"'{path}' is no tokenizer.json of Hugging Face's tokenizers: {bad}",
                        "invalid_argument") from None
        self._tokenizer.no_truncation()  # some files say how long a model's inputs may be
        self._tokenizer.no_padding()
        self.vocabulary = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if self.vocabulary == 0:
            raise Error(f"'{path}' is a tokenizer without a vocabulary", "invalid_argument")

    def encode(self, texts: Sequence[bytes]) -> list[list[int]]:
        decoded = [text.decode("utf-8") for text in texts]
        return [one.ids for one in self._tokenizer.encode_batch(decoded, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def description(self) -> str:
        return self._text


def load(name: str) -> Tokenizer:
    """The tokenizer of ``bytes``, a tokenizer.json, or a folder with one. bimetal.Error if there is none."""
    if name == BYTES:
        return ByteTokenizer()
    path = pathlib.Path(name)
    if path.is_dir():
        path /= FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as bad:
        raise Error(f"cannot read the tokenizer '{path}': {bad.strerror}; name a tokenizer.json, or bytes",
                    "invalid_argument") from None
    except UnicodeDecodeError:
        raise Error(f"'{path}' is no tokenizer.json: it is not UTF-8", "invalid_argument") from None
    return ByteTokenizer() if text.strip() == json.dumps(BYTES) else HuggingFaceTokenizer(path, text)
