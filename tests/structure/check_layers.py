#!/usr/bin/env python3
"""Checks the shape of the source tree: includes point down the layers only, the torch-free folders
stay torch-free, no layer is empty, each has one CMake target, no folder holds more than can be
looked over, and no file outgrows its one idea.

Usage: check_layers.py [ROOT]. Prints each offence as FILE:LINE: text; exits with 1 if there is any.
"""

import pathlib
import re
import sys

# Every layer, from the bottom to the top, with the layers that it may use (which is transitive in
# spirit, but spelled out so that a new dependency is a decision and not an accident). A folder that
# is not named here is a room of the layer that it lies in.
CORE = ["base", "net", "rendezvous", "comm", "balance"]
ALLOWED = {
    "base": [],
    "net": ["base"],
    "rendezvous": ["base", "net"],
    "comm": ["base", "net", "rendezvous"],
    "balance": ["base"],
    "parallel/schedule": ["base"],
    "serving": ["base", "net", "rendezvous", "comm"],
    "plan": [*CORE, "parallel/schedule"],
    "job": CORE,
    "progress": CORE,
    "device": [*CORE, "job"],
    "c10d": [*CORE, "device"],
    "task": ["base"],
    "data": ["base", "net", "balance", "task"],
    "capi": [*CORE, "data", "launch"],
    "models": ["base", "task"],
    "optim": ["base", "job"],
    "precision": ["base", "job"],
    "parallel": [*CORE, "progress", "parallel/schedule", "device", "c10d", "task", "optim"],
    "data/transfer": [*CORE, "job", "progress", "device", "data", "parallel"],
    "checkpoint": [*CORE, "job", "progress", "device", "task", "data", "models", "optim",
                   "precision"],
    "checkpoint/parts": ["base", "comm", "device", "task", "parallel", "checkpoint"],
    "task/catalog": [*CORE, "job", "device", "task", "data", "data/transfer", "models", "checkpoint"],
    "predict": [*CORE, "serving", "progress", "device", "task", "data", "parallel", "parallel/schedule", "checkpoint",
                "checkpoint/parts"],
    "train": [*CORE, "serving", "plan", "job", "progress", "device", "c10d", "task", "data",
              "data/transfer", "optim", "precision", "parallel", "parallel/schedule", "checkpoint", "checkpoint/parts",
              "task/catalog", "predict"],
    "monitor": ["base", "net", "progress"],
    "launch": [*CORE, "progress", "c10d", "data/transfer"],
    "fabric_bench": [*CORE, "launch"],
    "api": [*CORE, "job", "progress", "device", "task", "data", "data/transfer", "optim", "precision", "parallel",
            "checkpoint", "predict", "train", "launch"],
    "python": [*CORE, "serving", "job", "progress", "device", "c10d", "task", "data", "optim", "precision", "parallel",
               "parallel/schedule", "checkpoint", "monitor", "launch"],
    "cli": [*CORE, "serving", "plan", "job", "progress", "device", "task", "data", "data/transfer", "capi",
            "parallel", "parallel/schedule", "checkpoint", "task/catalog", "predict", "train", "monitor", "launch",
            "fabric_bench"],
    "python_host": ["base", "job", "device", "task", "task/catalog", "optim", "train", "cli"],
}
TORCH_FREE = [*CORE, "parallel/schedule", "serving", "plan", "job", "progress", "capi", "monitor"]
TORCH = re.compile(r'#include [<"](torch|ATen|c10)/')
INCLUDE = re.compile(r'#include "bimetal/([a-z0-9_/]+)/')
MAX_LINES = 400
MAX_FILES = 40
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


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    found = list(offences(root))
    print("\n".join(found) or f"layers hold: {len(ALLOWED)} folders checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
