"""A cluster's token for machines that know a code: what `up --share` shows and `join` asks for. The exchange is the program's, or that
of the part of it that lies in every wheel (docs/running.md, "By a code")."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
from dataclasses import dataclass

from bimetal.command import program
from bimetal.ray.result import error

PORT = 29401  # beside that of jobs
_PURPOSE = ["--purpose", "ray", "--port", str(PORT)]
_REACH_SECONDS = 3.0
_END_SECONDS = 5.0
ENCRYPTION = "BIMETAL_ENCRYPTION"
CODE = "BIMETAL_CODE"


class Share(contextlib.AbstractContextManager["Share"]):
    """For as long as others may join. Attributes: ``place`` and ``code``: what to type there.

    Args:
        token: the cluster's.
        address: of the head node, which others are told.
        port: its.
    """

    def __init__(self, token: str, address: str, port: int) -> None:
        free = PORT if _is_free(address, PORT) else 0  # another cluster may be shared here, too
        listen = ["--listen", f"[{address}]:{free}" if ":" in address else f"{address}:{free}"]
        self._process = subprocess.Popen([program.launcher(), "pair", "host", *_PURPOSE, "--name", f"Ray {address}", "--serves", str(port),
                                          *listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{token}\n")
        self._process.stdin.flush()
        said = dict(self._process.stdout.readline().strip().partition(" ")[::2] for _ in ("place", "code"))
        if "code" not in said:
            raise error(f"this cluster cannot be shared (status {self._process.wait()}); its reason is above", "system")
        self.place, self.code = said["place"], said["code"]

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # which ends it
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@dataclass(frozen=True)
class Admission:
    """The facts for a machine that was let in: the cluster's token, its head node, whether ranks encrypt what they
    send."""

    token: str
    head: str
    port: int
    encryption: str
    machine: str


def is_shared(head: str) -> bool:
    """Whether something listens there that lets machines in."""
    try:
        socket.create_connection((head, PORT), _REACH_SECONDS).close()
        return True
    except OSError:
        return False


def ask(head: str | None) -> Admission:
    """Asks to be let in at that machine, or at the one that the user chooses of those that are seen. SystemExit where it is not: why
    has been said then."""
    command = [program.launcher(), "pair", "guest", *_PURPOSE, *([head] if head else [])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    granted: list[str] = []
    assert child.stdout
    with child.stdout:
        for line in child.stdout:
            if line.startswith("granted "):
                granted = line.split()[1:]
            else:
                print(line, end="", flush=True)
    status = child.wait()
    if status or not granted:
        sys.exit(status or 1)
    token, address, port, encryption, machine = granted
    return Admission(token, address, int(port), encryption, machine)


def keep(admission: Admission, path: pathlib.Path) -> None:
    """Writes the token where Ray looks for it. bimetal.Error where another cluster's is there."""
    from bimetal.command import token

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        token.write(str(path), admission.token)
    except FileExistsError:
        if path.read_text().strip() != admission.token:
            raise error(f"{path} has another cluster's token, and is left as it is: name another file by --token-file, or remove it",
                        "unauthorized") from None


def encrypt_unless_told(encryption: str = "on") -> None:
    """Sets encryption of all that the ranks of this node send."""
    os.environ.setdefault(ENCRYPTION, encryption)


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
