"""torch's store, kept elsewhere than in a server of torch's, which neither asks for a token nor listens on one address alone."""

from __future__ import annotations

import datetime
import time
from typing import Any

from torch.distributed import Store

from bimetal._errors import error

_LONGEST_PAUSE = 0.05  # seconds between two looks for a key
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=5)


class AskedStore(Store):
    """torch.distributed.Store over keys and values that somebody else keeps, who is asked and never waits.

    Args:
        ask: calls a method by name: ``ask("get", ["key"])``, with None for a missing key; set, add, compare_set,
            delete_key, num_keys.
    """

    def __init__(self, ask: Any):
        super().__init__()
        self._ask = ask
        self._timeout = _DEFAULT_TIMEOUT

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _as_bytes(value))

    def get(self, key: str) -> bytes:
        return self._wait([key], self._timeout)[0]

    def add(self, key: str, amount: int) -> int:
        return self._ask("add", key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._ask("compare_set", key, _as_bytes(expected), _as_bytes(desired))

    def check(self, keys: list[str]) -> bool:
        return all(value is not None for value in self._ask("get", list(keys)))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._wait(list(keys), timeout or self._timeout)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete_key", key)

    def num_keys(self) -> int:
        return self._ask("num_keys")

    def _wait(self, keys: list[str], timeout: datetime.timedelta) -> list[bytes]:
        until = time.monotonic() + timeout.total_seconds()
        pause = 0.001
        while True:
            values = self._ask("get", keys)
            missing = [key for key, value in zip(keys, values) if value is None]
            if not missing:
                return values
            if time.monotonic() > until:
                raise error(f"nobody set {', '.join(missing)} in the store of rank 0 in {timeout}", "timeout")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
