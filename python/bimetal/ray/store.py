"""How the ranks of a train loop find each other: torch's store, kept in rank 0's actor and asked through Ray.

torch's own TCPStore neither asks for a token nor listens on one address alone; Ray's calls do both.
"""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import ray
from torch.distributed import Store

from bimetal.ray.result import error

_LONGEST_PAUSE = 0.05  # seconds between two looks for a key
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=5)
_CALL_SECONDS = 60.0  # for one call of rank 0's actor


class Shelf:
    """Keys and values, in the memory of rank 0. Thread-safe; never waits."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, keys: list[str]) -> list[bytes | None]:
        with self._lock:
            return [self._values.get(key) for key in keys]

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            value = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(value).encode()
            return value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._lock:
            current = self._values.get(key)
            if current == expected or (current is None and not expected):
                self._values[key] = desired
                return desired
            return expected if current is None else current

    def delete(self, key: str) -> bool:
        with self._lock:
            return self._values.pop(key, None) is not None

    def size(self) -> int:
        with self._lock:
            return len(self._values)


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
        return self._ask("delete", key)

    def num_keys(self) -> int:
        return self._ask("size")

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
