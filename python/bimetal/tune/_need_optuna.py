"""Optuna is there: looked at before anything of it is imported."""

from __future__ import annotations

import importlib.util
import sys

INSTALL = 'pip install "optuna>=4"'


def check() -> None:
    """Raises ImportError, which says what to type, where Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise ImportError(f"bimetal tune needs Optuna, which is not installed in {sys.executable}: "
                          f"{sys.executable} -m {INSTALL} (BIMETAL_PYTHON names another interpreter)", name="optuna")
