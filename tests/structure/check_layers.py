#!/usr/bin/env python3
"""Checks the shape of the source tree: includes point down the layers only, the torch-free folders
stay torch-free, no folder is empty, each has one CMake target, and no file outgrows its one idea.

Usage: check_layers.py [ROOT]. Prints each offence as FILE:LINE: text; exits with 1 if there is any.
"""

import pathlib
import re
import sys

# A folder may include itself and the folders named here (which is transitive in spirit, but spelled
# out so that a new dependency is a decision and not an accident).
CORE = ["base", "net", "rendezvous", "comm", "balance"]
TORCH_FREE = CORE + ["serving"]
ALLOWED = {
    "base": [],
    "net": ["base"],
    "rendezvous": ["base", "net"],
    "comm": ["base", "net", "rendezvous"],
    "balance": ["base"],
    "serving": ["base", "net", "rendezvous", "comm"],
    "device": CORE,
    "c10d": CORE + ["device"],
    "data": CORE + ["device"],
    "models": ["base"],
    "parallel": CORE + ["device", "c10d"],
    "train": CORE + ["serving", "device", "c10d", "data", "models", "parallel"],
    "monitor": ["base", "net", "train"],
    "launch": CORE + ["device", "c10d", "data", "train"],
    "fabric_bench": CORE + ["launch"],
    "api": CORE + ["device", "data", "models", "parallel", "train", "launch"],
    "python": CORE + ["serving", "device", "c10d", "data"],
    "cli": CORE + ["serving", "device", "data", "models", "parallel", "train", "monitor", "launch",
                   "fabric_bench"],
}
TORCH = re.compile(r'#include [<"](torch|ATen|c10)/')
INCLUDE = re.compile(r'#include "bimetal/([a-z0-9_]+)/')
MAX_LINES = 400
SUFFIXES = {".h", ".cpp"}


def offences(root: pathlib.Path):
    source = root / "src" / "bimetal"
    for folder in sorted(p for p in source.iterdir() if p.is_dir()):
        if folder.name not in ALLOWED:
            yield f"{folder}: not a layer of docs/architecture.md; name it in {__file__}"
            continue
        files = sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES)
        if not any(p.suffix == ".cpp" for p in files):
            yield f"{folder}: a folder without a source file"
        if not (folder / "CMakeLists.txt").exists():
            yield f"{folder}: has no CMakeLists.txt"
        for path in files:
            yield from file_offences(path, folder.name)


def file_offences(path: pathlib.Path, layer: str):
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines; split it (the most is {MAX_LINES})"
    for number, line in enumerate(lines, 1):
        if (match := INCLUDE.match(line)) and match[1] != layer and match[1] not in ALLOWED[layer]:
            yield f"{path}:{number}: '{layer}' may not use '{match[1]}'"
        if layer in TORCH_FREE and TORCH.match(line):
            yield f"{path}:{number}: '{layer}' must compile without libtorch"


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    found = list(offences(root))
    print("\n".join(found) or f"layers hold: {len(ALLOWED)} folders checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
