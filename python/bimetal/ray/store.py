"""How the ranks of a train loop find each other: torch's store, kept in rank 0's actor and asked through Ray."""

from __future__ import annotations

from typing import Any

import ray
from torch.distributed import HashStore

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


def through_ray(actor: Any) -> Any:
    """The way to the Shelf of another actor."""
    def ask(method: str, *arguments: Any) -> Any:
        return ray.get(actor.shelf.remote(method, *arguments), timeout=_CALL_SECONDS)

    return ask


def at_hand(shelf: Shelf) -> Any:
    """The way to a Shelf of this process."""
    return lambda method, *arguments: getattr(shelf, method)(*arguments)
