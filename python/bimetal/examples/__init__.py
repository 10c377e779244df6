"""The examples, which come with the package: ``python -m bimetal.examples`` lists and copies them."""

from __future__ import annotations

import ast
import pathlib

_HERE = pathlib.Path(__file__).resolve().parent
# Beside this file where the package is installed; in a clone they are the sources' own.
FOLDER = _HERE / "files" if (_HERE / "files").is_dir() else _HERE.parents[2] / "examples"
_ENDINGS = (".toml", ".py", ".sh", ".sbatch", ".json", ".cpp", ".txt", ".md", ".yaml", ".yml")


def names() -> list[str]:
    """The names of all examples, as paths below FOLDER."""
    return sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*")
                  if path.suffix in _ENDINGS and "__pycache__" not in path.parts)


def summary(name: str) -> str:
    """The first sentence of an example's description of itself."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        return ""
    if name.endswith(".py"):
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = [line for line in text.splitlines() if not line.startswith("#!")]
        marks = "# /"
        about = " ".join(line.lstrip(marks) for line in lines[:4] if line[:1] in marks and line.strip(marks)) or ""
    return " ".join(about.split()).partition(". ")[0].rstrip(".:")
