"""The token of a Ray cluster: anybody who has it may run anything there, so all nodes ask for it. It also checks that
Ray is there, is new enough, and will present the token, before anything of Ray is imported."""

from __future__ import annotations

import codecs
import importlib.metadata
import importlib.util
import os
import pathlib
import secrets
from collections.abc import MutableMapping

from bimetal.command import token

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def default_path() -> pathlib.Path:
    """The place where Ray looks for a token unless told otherwise."""
    return pathlib.Path.home() / ".ray" / "auth_token"


def given_path(environment: MutableMapping[str, str] = os.environ) -> pathlib.Path:
    """The token's file: what RAY_AUTH_TOKEN_PATH names, else Ray's default."""
    named = environment.get(PATH)
    return pathlib.Path(named) if named else default_path()


def present_if_there(environment: MutableMapping[str, str] = os.environ) -> None:
    """Switches Ray's token authentication on for this process where a token is at hand and nobody has decided."""
    if MODE not in environment and (environment.get(TOKEN) or given_path(environment).is_file()):
        environment[MODE] = "token"


def make(path: pathlib.Path) -> bool:
    """Makes a token there, readable by its owner alone. False if there is one already, which is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        token.write(str(path), secrets.token_hex(32))
    except FileExistsError:
        return False
    return True


def complaint(path: pathlib.Path) -> str | None:
    """The fault of the token's file, and the command to type; None if it will do."""
    if not path.is_file():
        return (f"there is no token at {path}: copy the one of the first machine here, by a safe way, for example\n"
                f"  scp -p HEAD:.ray/auth_token {path}\nor start the cluster there by `bimetal ray up --share`, which shows a code")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        return f"the token {path} can be read by other users of this machine: chmod 600 {path}"
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return (f"the token {path} begins with a byte order mark, which Ray takes for a part of it: copy the first machine's "
                "file itself, or write it in PowerShell by `Out-File -Encoding ascii`")
    if not content.strip():
        return f"the token {path} is empty: remove it, and copy the first machine's here"
    return None


OLDEST = (2, 52)  # the first with token authentication
INSTALL = 'pip install "ray>=2.52"'


def require_ray() -> None:
    """Raises ImportError, which says what to type, where Ray is missing or too old."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(f"bimetal.ray needs Ray, which is not installed here: {INSTALL}", name="ray")
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ImportError(f"bimetal.ray needs Ray {'.'.join(map(str, OLDEST))} or later, which knows tokens; this is "
                          f"{version}: {INSTALL}", name="ray")
    # Ray decides when it is imported whether to present a token.
    present_if_there()
