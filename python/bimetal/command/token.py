"""bimetal token: a job's secret, in a file that nobody else can read."""

from __future__ import annotations

import argparse
import os
import secrets
from typing import Any

_DIGITS = 64  # as net/token.h makes them


def add_to(commands: Any) -> None:
    parser = commands.add_parser("token", help="make a secret by which the machines of a job know each other",
                                 description="Makes a secret: copy it to the other machines by a safe way (scp -p), and "
                                             "set BIMETAL_TOKEN_FILE to its path on each.")
    parser.add_argument("file", nargs="?", metavar="FILE", help="a new file; without it the secret is printed")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    secret = secrets.token_hex(_DIGITS // 2)
    if arguments.file is None:
        print(secret)
        return 0
    write(arguments.file, secret)
    print(f"wrote {arguments.file}; copy it to the other machines by a safe way (scp -p), and set "
          f"BIMETAL_TOKEN_FILE={arguments.file} on each")
    return 0


def write(path: str, secret: str) -> None:
    """Never readable by others, not even for a moment; a file that is there stays."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
