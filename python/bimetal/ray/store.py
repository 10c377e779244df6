"""How the ranks of a train loop find each other: torch's store, kept in rank 0's actor and asked through Ray.

torch's own TCPStore neither asks for a token nor listens on one address alone; Ray's calls do both.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import ray
from torch.distributed import HashStore, Store

from bimetal.ray.result import error

_LONGEST_PAUSE = 0.05  # seconds between two looks for a key
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=5)
_CALL_SECONDS = 60.0  # for one call of rank 0's actor


class Shelf:
    """Keys and values, in the memory of rank 0. Thread-safe; never waits."""

    def __init__(self) -> None:
        self._store = HashStore()

    def get(self, keys: list[str]) -> list[bytes | None]:
        return [self._store.get(key) if self._store.check([key]) else None for key in keys]

    def __getattr__(self, method: str) -> Any:
        """set, add, compare_set, delete_key and num_keys are that store's."""
        return getattr(self._store, method)


class RayStore(Store):
    """torch.distributed.Store over a Shelf elsewhere.

    Args:
        ask: calls a method of the Shelf by name: ``ask("get", ["key"])``.
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


def through_ray(actor: Any) -> Any:
    """The way to the Shelf of another actor."""
    def ask(method: str, *arguments: Any) -> Any:
        return ray.get(actor.shelf.remote(method, *arguments), timeout=_CALL_SECONDS)

    return ask


def at_hand(shelf: Shelf) -> Any:
    """The way to a Shelf of this process."""
    return lambda method, *arguments: getattr(shelf, method)(*arguments)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
