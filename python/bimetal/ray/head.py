"""A cluster's head node, as seen by processes that need it: drivers, and nodes that have joined.

Ray's own calls wait for a minute for a head node that is gone, and then end the process: the functions here have
deadlines and a connection of their own. It uses nothing of Bimetal, since a node's process (node.py) loads it by its
path.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from ray._raylet import GcsClient

_SPACE, _STATE = b"bimetal", b"state of the cluster"  # in the head node's own store
_RUNS, _ENDS = b"runs", b"ends"
_LOOK_EVERY = 0.5
_CALL_SECONDS = 2.0
_TOLD_SECONDS = 3.0  # in which everybody has looked, where a look itself takes a while, too
# Without an answer a head node is gone after
_REFUSED_SECONDS = 3.0  # if its machine says that nobody listens,
_SILENT_SECONDS = 20.0  # if it says nothing,
_OTHERS_SECONDS = 45.0  # and if others have started it, who may let it come back (Ray's fault tolerance).


def listens(address: str) -> bool | None:
    """Whether a head node does at HOST:PORT; None if the machine does not answer."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
        return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None


def announce(address: str) -> None:
    """Marks a cluster that has just been started as one whose head node does not come back."""
    _say(GcsClient(address=address), _RUNS)


def let_jobs_leave(address: str, seconds: float) -> None:
    """Tells drivers and nodes that the cluster is being ended; returns when nothing of it is in use any more, or after
    so many seconds."""
    client = GcsClient(address=address)
    _say(client, _ENDS)
    until = time.monotonic() + seconds
    time.sleep(_TOLD_SECONDS)
    while _in_use(client) and time.monotonic() < until:
        time.sleep(0.1)


class News:
    """The state of the cluster, asked every half second while this context is open. Any thread may read it.

    Attributes:
        address: of the head node, HOST:PORT.
        leaving: ids of nodes that are being ended and take no more work (Ray's drain).
        ended: the cluster is being ended at its head node, which waits a while for jobs to leave.
        gone: the head node does not answer any more.
    """

    def __init__(self, address: str):
        self.address = address
        self.leaving: frozenset[str] = frozenset()
        self.ended = False
        self.gone = False
        self._ours = False  # started by `up`
        self._silent_since: float | None = None
        self._client: Any = None
        self._looking = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> News:
        self.look()
        threading.Thread(target=self._keep_looking, name="cluster_news", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    @property
    def over(self) -> str | None:
        """Why the cluster cannot be used any more, for people."""
        if self.ended:
            return f"the cluster was ended at its head node, {self.address}"
        if self.gone:
            return f"the cluster's head node, {self.address}, is gone: nobody answers there any more"
        return None

    @property
    def code(self) -> str:
        """The code of an error with that text."""
        return "aborted" if self.ended else "peer_lost"

    @property
    def answers(self) -> bool:
        """Whether the head node did when it was last asked: only then Ray's own calls return soon."""
        return self._silent_since is None

    def verdict(self) -> str | None:
        """The same as ``over`` by now; where the head node does not answer, by the time that this is clear."""
        self.look()
        while not self.answers and not self.over:
            time.sleep(0.1)
        return self.over

    def look(self) -> None:
        """Asks now."""
        with self._looking:
            found = listens(self.address)
            if found:
                self._silent_since = None
                self._ask()
                return
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            self.gone = self.gone or now - self._silent_since >= self._patience(refused=found is False)

    def _keep_looking(self) -> None:
        while not self._closed.wait(_LOOK_EVERY):
            self.look()

    def _patience(self, refused: bool) -> float:
        if self.ended:
            return 0.0 if refused else _REFUSED_SECONDS
        if not self._ours:
            return _OTHERS_SECONDS
        return _REFUSED_SECONDS if refused else _SILENT_SECONDS

    def _ask(self) -> None:
        try:
            self._client = self._client or GcsClient(address=self.address)
            state = self._client.internal_kv_get(_STATE, namespace=_SPACE, timeout=_CALL_SECONDS)
            self._ours = self._ours or state is not None
            self.ended = self.ended or state == _ENDS
            self.leaving = frozenset(self._client.get_draining_nodes(timeout=_CALL_SECONDS))
        except Exception:  # of Ray's many kinds: whether the head node is gone is found out by the next look
            return


def _say(client: Any, state: bytes) -> None:
    client.internal_kv_put(_STATE, state, overwrite=True, namespace=_SPACE, timeout=_CALL_SECONDS)


def _in_use(client: Any) -> bool:
    """Whether resources of any node are set aside or taken, as far as known: no answer is no leave to end."""
    try:
        nodes = client.get_all_resource_usage(timeout=_CALL_SECONDS).resource_usage_data.batch
    except Exception:  # of Ray's many kinds
        return True
    return any(amount - node.resources_available.get(name, 0.0) > 1e-6
               for node in nodes for name, amount in node.resources_total.items()
               if name not in ("memory", "object_store_memory"))
