"""Calls that can never work, whatever the other ranks say."""

from __future__ import annotations

from bimetal._errors import Error


class Misuse(Error, ValueError):
    """A bimetal.Error with code ``invalid_argument`` that scripts written for Horovod catch, too: by ``except
    ValueError``."""

    def __init__(self, message: str):
        super().__init__(message, "invalid_argument")
