#!/usr/bin/env python3
"""Checks that bytes are never executed: no source reads a file or a message by a way that can run what is in it.

libtorch's archives and TorchScript hold code that loading runs, and so does Python's pickle. Messages between processes
and the contents of checkpoints are read as data: safetensors, JSON, the project's own messages (docs/checkpoints.md).

Usage: check_data_only.py [ROOT]. Prints each offence as FILE:LINE: text; exits with 1 if there is any.
"""

import ast
import pathlib
import re
import sys

CPP_FOLDERS, PYTHON_FOLDERS = ("src", "examples", "bench"), ("python", "examples", "bench", "src", "scripts")
CPP_SUFFIXES = {".h", ".cpp", ".mm", ".cu"}

ARCHIVE = re.compile(r"\b(InputArchive|torch::load|torch::jit|torch::pickle_load|pickle_load|Unpickler)\b")
# The signature of libtorch's virtual function, in which the archive has no name: nothing is read from it.
REFUSED = re.compile(r"void load\(torch::serialize::InputArchive&\) final \{ refuse_archive\(\); \}")

# Calls by their full name, modules imported under another one included.
FORBIDDEN = re.compile(r"(.*\.)?(pickle|cPickle|dill|cloudpickle|marshal|shelve|joblib)\.(load|loads|open|Unpickler)"
                       r"|torch\.jit\.load|torch\.package\.\w+|torch\.hub\.\w+|eval|exec|builtins\.(eval|exec)"
                       r"|yaml\.(load|unsafe_load|full_load)")
# Calls in which a keyword makes the difference: without it, or with another value, the call runs the code that it
# reads.
SAFE_WITH = {"torch.load": ("weights_only", True), "numpy.load": ("allow_pickle", False)}


def offences(root: pathlib.Path):
    for folder in CPP_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in CPP_SUFFIXES:
                yield from cpp_offences(path)
    for folder in PYTHON_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield from python_offences(path)


def cpp_offences(path: pathlib.Path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code = line.partition("//")[0]
        if (found := ARCHIVE.search(code)) and not REFUSED.search(code):
            yield f"{path}:{number}: {found[1]} can run what it reads; use checkpoint/safetensors.h"


def python_offences(path: pathlib.Path):
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    names = imported_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = full_name(node.func, names)
        if name in SAFE_WITH:
            keyword, value = SAFE_WITH[name]
            given = [entry.value for entry in node.keywords if entry.arg == keyword]
            if not (given and isinstance(given[0], ast.Constant) and given[0].value is value):
                yield f"{path}:{node.lineno}: {name} without {keyword}={value} can run what it reads"
        elif FORBIDDEN.fullmatch(name):
            yield f"{path}:{node.lineno}: {name} can run what it reads"


def imported_names(tree: ast.AST) -> dict[str, str]:
    """The meaning of each name in a file: {"np": "numpy", "loads": "pickle.loads"}."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({entry.asname or entry.name.partition(".")[0]: entry.name if entry.asname else
                          entry.name.partition(".")[0] for entry in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({entry.asname or entry.name: f"{node.module}.{entry.name}" for entry in node.names})
    return names


def full_name(node: ast.AST, names: dict[str, str]) -> str:
    """`np.load` → "numpy.load"; "" for what has no name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, names)}.{node.attr}"
    return ""


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    found = list(offences(root))
    print("\n".join(found) or "nothing that is read is executed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
