"""Ray is there, is new enough, and will present its token: looked at before anything of it is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from bimetal.ray import token_file

OLDEST = (2, 52)  # the first with token authentication
INSTALL = 'pip install "ray>=2.52"'


def check() -> None:
    """Raises ImportError, which says what to type, where Ray is missing or too old."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError(f"bimetal.ray needs Ray, which is not installed here: {INSTALL}", name="ray")
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ImportError(f"bimetal.ray needs Ray {'.'.join(map(str, OLDEST))} or later, which knows tokens; this is "
                          f"{version}: {INSTALL}", name="ray")
    # Ray decides when it is imported whether to present a token.
    token_file.present_if_there()
