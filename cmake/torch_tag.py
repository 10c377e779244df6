"""For pyproject.toml: a wheel's version names the torch that it is built against, and asks for it."""

import importlib.metadata
import pathlib
import re


def dynamic_metadata(field, settings=None):
    torch = series()
    if field == "dependencies":
        return [f"torch=={torch}.*"]
    return f"{version()}+torch{torch}"


def version():
    """Of the project, from its CMakeLists.txt."""
    text = (pathlib.Path(__file__).parents[1] / "CMakeLists.txt").read_text()
    return re.search(r"project\(bimetal VERSION ([0-9.]+)", text)[1]


def series():
    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("bimetal is built against the torch that is installed, and there is none. Install torch "
                         "first, then: pip install --no-build-isolation .") from None
    return ".".join(installed.split("+")[0].split(".")[:2])
