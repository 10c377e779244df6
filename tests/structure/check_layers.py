#!/usr/bin/env python3
"""Checks the shape of the source tree: includes point down the layers only, the torch-free folders
stay torch-free, no layer is empty, each has one CMake target, no folder holds more than can be
looked over, no file outgrows its one idea, and few are too small for one. In python/bimetal no
modules, and no folders, import each other in a circle, be it within functions or for annotations.

Usage: check_layers.py [ROOT]. Prints each offence as FILE:LINE: text; exits with 1 if there is any.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

# Every layer, from the bottom to the top, with the layers that it may use (which is transitive in
# spirit, but spelled out so that a new dependency is a decision and not an accident). A folder that
# is not named here is a room of the layer that it lies in.
CORE = ["base", "net", "rendezvous", "comm", "balance"]
ALLOWED = {
    "base": [],
    "net": ["base"],
    "rendezvous": ["base", "net"],
    "comm": ["base", "net", "rendezvous"],
    "membership": ["base", "net", "rendezvous", "comm"],
    "balance": ["base"],
    "parallel/schedule": ["base"],
    "serving": ["base", "net", "rendezvous", "comm"],
    "plan": [*CORE, "parallel/schedule"],
    "job": CORE,
    "progress": CORE,
    "device": [*CORE, "job"],
    "c10d": [*CORE, "device"],
    "task": ["base"],
    "data": ["base", "net", "balance", "device", "task"],
    "capi": [*CORE, "membership", "data", "launch"],
    "models": ["base", "task"],
    "optim": ["base", "job"],
    "precision": ["base", "job", "device"],
    "parallel": [*CORE, "progress", "parallel/schedule", "device", "c10d", "task", "optim"],
    "data/transfer": [*CORE, "job", "progress", "device", "data", "parallel"],
    "checkpoint": [*CORE, "job", "progress", "device", "task", "data", "models", "optim",
                   "precision"],
    "checkpoint/parts": ["base", "comm", "device", "task", "parallel", "checkpoint"],
    "task/catalog": [*CORE, "job", "device", "task", "data", "data/transfer", "models", "checkpoint"],
    "predict": [*CORE, "serving", "progress", "device", "task", "data", "parallel", "parallel/schedule", "checkpoint",
                "checkpoint/parts"],
    "train": [*CORE, "membership", "serving", "plan", "job", "progress", "device", "c10d", "task", "data",
              "data/transfer", "optim", "precision", "parallel", "parallel/schedule", "checkpoint", "checkpoint/parts",
              "task/catalog", "predict"],
    "monitor": ["base", "net", "progress"],
    "launch": [*CORE, "membership", "progress", "c10d", "data/transfer"],
    "fabric_bench": [*CORE, "launch"],
    "api": [*CORE, "membership", "job", "progress", "device", "task", "data", "data/transfer", "optim", "precision", "parallel",
            "checkpoint", "predict", "train", "launch"],
    "cli": [*CORE, "membership", "serving", "plan", "job", "progress", "device", "task", "data", "data/transfer", "capi",
            "parallel", "parallel/schedule", "checkpoint", "task/catalog", "predict", "train", "monitor", "launch",
            "fabric_bench"],
    "python": [*CORE, "serving", "job", "progress", "device", "c10d", "task", "data", "optim", "precision", "parallel",
               "parallel/schedule", "checkpoint", "task/catalog", "monitor", "launch", "capi", "cli"],
}
TORCH_FREE = [*CORE, "membership", "parallel/schedule", "serving", "plan", "job", "progress", "capi", "monitor"]
TORCH = re.compile(r'#include [<"](torch|ATen|c10)/')
INCLUDE = re.compile(r'#include "bimetal/([a-z0-9_/]+)/')
MAX_LINES = 400
MAX_FILES = 40
# Rooms, with the folders in them, of which no more than that part of the files are small: a header of twenty lines is
# part of something. scripts/size.sh counts alike, all lines of a file.
SMALL_LINES = 60
MAX_SMALL = 0.2
FEW_SMALL = ["api", "balance", "c10d", "capi", "checkpoint", "comm", "data", "job", "launch", "membership", "models", "monitor",
             "parallel", "plan", "precision", "predict", "python", "rendezvous", "serving"]
SUFFIXES = {".h", ".cpp"}


def layer_of(folder: str) -> str:
    """The innermost layer that `folder`, as "comm/shm", lies in; "" if there is none."""
    while folder and folder not in ALLOWED:
        folder = folder.rpartition("/")[0]
    return folder


def offences(root: pathlib.Path):
    source = root / "src" / "bimetal"
    sources: dict[str, list[pathlib.Path]] = {}
    for folder in sorted(p for p in source.rglob("*") if p.is_dir()):
        name = folder.relative_to(source).as_posix()
        layer = layer_of(name)
        if not layer:
            yield f"{folder}: not a layer of docs/architecture.md; name it in {__file__}"
            continue
        has_target = (folder / "CMakeLists.txt").exists()
        if name == layer and not has_target:
            yield f"{folder}: has no CMakeLists.txt"
        if name != layer and has_target:
            yield f"{folder}: a room of {layer} with a CMakeLists.txt of its own"
        here = [p for p in sorted(folder.iterdir()) if p.is_file()]
        if len(here) > MAX_FILES:
            yield f"{folder}: {len(here)} files; give it rooms (the most is {MAX_FILES})"
        sources.setdefault(layer, []).extend(p for p in here if p.suffix in SUFFIXES)
    for layer, files in sources.items():
        if not any(p.suffix == ".cpp" for p in files):
            yield f"{source / layer}: a folder without a source file"
        for path in files:
            yield from file_offences(path, layer)


def small_file_offences(source: pathlib.Path):
    for room in FEW_SMALL:
        files = [p for p in (source / room).rglob("*") if p.suffix in SUFFIXES]
        small = sorted(p.relative_to(source).as_posix() for p in files
                       if len(p.read_text(encoding="utf-8").splitlines()) < SMALL_LINES)
        if len(small) > MAX_SMALL * len(files):
            yield (f"{source / room}: {len(small)} of {len(files)} files have less than {SMALL_LINES} lines (the most "
                   f"is {MAX_SMALL:.0%}): make them parts of others: {', '.join(small)}")


def file_offences(path: pathlib.Path, layer: str):
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines; split it (the most is {MAX_LINES})"
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            used = layer_of(match[1])
            if used != layer and used not in ALLOWED[layer]:
                yield f"{path}:{number}: '{layer}' may not use '{used or match[1]}'"
        if layer in TORCH_FREE and TORCH.match(line):
            yield f"{path}:{number}: '{layer}' must compile without libtorch"


def python_circles(package: pathlib.Path) -> Iterator[str]:
    """Circles of modules, then of folders. Modules beside the package's __init__.py are a folder each; that file's own
    imports, by which users reach the others, are none."""
    files = {".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
             for path in package.rglob("*.py")}
    modules = {name: imports_of(name, path, files) - {name} for name, path in files.items() if name != package.name}
    places = {name: path.parent if path.parent != package else path for name, path in files.items()}
    folders: dict[pathlib.Path, set[pathlib.Path]] = {place: set() for place in places.values()}
    for name, used in modules.items():
        folders[places[name]] |= {places[other] for other in used} - {places[name]}
    for graph in (modules, folders):
        if circle := circle_in(graph):
            yield f"{package}: {' → '.join(map(str, circle))}: a circle of imports"


def imports_of(name: str, path: pathlib.Path, files: dict[str, pathlib.Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            own = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= own if own <= files.keys() else (own & files.keys()) | {node.module}
    return {other for other in found if other in files and "." in other}


def circle_in(graph: dict) -> list:
    """One, from its beginning to its beginning; empty if there is none."""
    over = set()

    def follow(node, way: list) -> list:
        if node in way:
            return [*way[way.index(node):], node]
        if node in over:
            return []
        for other in sorted(graph.get(node, ())):
            if circle := follow(other, [*way, node]):
                return circle
        over.add(node)
        return []

    return next(filter(None, (follow(node, []) for node in sorted(graph))), [])


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    found = [*offences(root), *small_file_offences(root / "src" / "bimetal"), *python_circles(root / "python" / "bimetal")]
    print("\n".join(found) or f"layers hold: {len(ALLOWED)} folders checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
