"""The events of a job's monitor, as its page for browsers gets them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

_ANSWER_SECONDS = 20.0  # the monitor tells how the job is twice a second
_AGAIN_SECONDS = 1.0
_AT_THE_END_SECONDS = 2.0


class Monitor:
    """
    Args:
        address: HOST:PORT.
        token: the monitor's; empty on loopback.
    """

    def __init__(self, address: str, token: str):
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._head = {"Authorization": f"Bearer {token}"} if token else {}
        self._ending: float | None = None

    def end(self) -> None:
        """From another thread: the job has ended. ``events`` gives the rest, and then no more."""
        self._ending = time.monotonic() + _AT_THE_END_SECONDS

    def events(self) -> Iterator[tuple[str, Any]]:
        """(name, data): "history" when a connection is new, then "news" and "status". Until the job has ended; a monitor that cannot be
        reached is asked again."""
        while True:
            try:
                yield from self._events_of_connection()
            except (OSError, http.client.HTTPException, ValueError):
                pass
            if self._ending and time.monotonic() > self._ending:
                return
            yield "gone", None
            time.sleep(0.1 if self._ending else _AGAIN_SECONDS)

    def _events_of_connection(self) -> Iterator[tuple[str, Any]]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", "/events", headers=self._head)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"the monitor answers {answer.status}")
            name = ""
            for line in answer:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = rest
                elif word == "data":
                    yield name, json.loads(rest)
                if self._ending and time.monotonic() > self._ending:
                    return
        finally:
            connection.close()
