"""The files that a test's result depends on, found in the build's own link graph (Ninja) and in Python's imports.

A program depends on every source and header that went into an object that it links. A script depends on the modules that it imports,
directly or not, and, if the package is among them, on the package's compiled modules. Files whose folder a test names in its
text (examples, scripts) count whole. The hash has no paths in it but those below the repository's root, so that it is the same in another clone.
"""

import ast
import functools
import hashlib
import pathlib
import re
import subprocess

from . import catalog

ROOT = catalog.ROOT
NAMED_FOLDERS = ("bench", "cmake", "docs", "examples", "scripts")
PACKAGE = ROOT / "python"
PACKAGE_TARGETS = ("bimetal_python", "bimetal_capi")
# Suites that are scripts: the targets and folders from which their link graph begins.
SUITES = {
    "suite.sanitizers": (("fabric_peer", "fabric_bench", "unit_net", "unit_comm", "unit_base", "unit_serving", "conformance"), ("cmake",)),
    "suite.engines": (("bimetal", *PACKAGE_TARGETS), ("python", "tests/launch", "tests/fault", "examples")),
    "suite.page": (("bimetal", *PACKAGE_TARGETS), ("python", "tests/page", "tests/fault")),
    "suite.trackers": (("bimetal", *PACKAGE_TARGETS), ("python", "tests/fault")),
    "suite.ray": (("bimetal", *PACKAGE_TARGETS), ("python", "tests/ray", "examples")),
    "suite.deepspeed": (("bimetal_python", "bimetal_capi"), ("python", "tests/deepspeed")),
    "suite.wheel": (("bimetal_python", "bimetal_capi"), ("python", "tests/install", "pyproject.toml", "cmake")),
    "suite.torch_versions": (("bimetal_python",), ("tests/torch_headers",)),
    "suite.portability": (("bimetal_capi", "fabric_peer", "bimetal_lite"), ("tests/portability", "cmake")),
    "suite.portability_program": (("bimetal",), ("tests/portability", "cmake")),
    "suite.wheels": (("bimetal_capi", "bimetal_lite"), ("python", "tests/wheels", "tests/install", "cmake")),
}


class Graph:
    """Which files below the root go into a target, by Ninja's own records of the last build."""

    def __init__(self, build):
        self.build = pathlib.Path(build).resolve()
        self.of_object = {}
        read = None
        for line in self.ninja("-t", "deps").splitlines():
            if line.startswith("    "):
                if file := below_root((self.build / line.strip()).resolve(), self.build):
                    read.add(file)
            elif ": #deps" in line:
                read = self.of_object.setdefault(str(self.build / line.split(":")[0]), set())

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", self.build, *arguments], capture_output=True, text=True).stdout

    @functools.cache
    def files_of(self, target):
        found = set()
        for path in self.ninja("-t", "inputs", target).splitlines():
            if not path.startswith("ninja:"):
                found |= self.of_object.get(str(self.build / path), set())
        return frozenset(found)


def below_root(path, build):
    """The path if it is a source of ours: below the root, and neither built nor installed there."""
    if not path.is_relative_to(ROOT) or path.is_relative_to(build) or path.relative_to(ROOT).parts[0] in (".venv", ".git"):
        return None
    return path


@functools.cache
def modules_of(file):
    """The files of ours that a Python file imports, itself among them."""
    found, waiting = set(), [file]
    while waiting:
        at = waiting.pop()
        if at in found:
            continue
        found.add(at)
        waiting += imported_by(at)
    return frozenset(found)


@functools.cache
def imported_by(file):
    return frozenset(module for name in imported_names(file) for module in located(name, file))


def imported_names(file):
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            joint = "" if package.endswith(".") or not package else "."
            names |= {package, *(f"{package}{joint}{alias.name}" for alias in node.names)} - {""}
    return frozenset(names)


def located(name, importer):
    """The files of a module's name, with the packages that it lies in; none if it is not ours."""
    dots = len(name) - len(name.lstrip("."))
    folders = [importer.parents[dots - 1]] if dots else [importer.parent, PACKAGE, *sorted((ROOT / "tests").iterdir()), ROOT / "bench"]
    parts = [part for part in name[dots:].split(".") if part]
    for folder in folders:
        found, at = [], folder
        for part in parts:
            at = at / part
            found += [path for path in (at.with_suffix(".py"), at / "__init__.py") if path.is_file()]
        if found or not parts:
            return found
    return []


@functools.cache
def text_of(file):
    return file.read_text(errors="replace")


def files_in(path):
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


@functools.cache
def folders_named(file):
    """Folders of the repository that a test's text has in quotes."""
    return frozenset(f for name in NAMED_FOLDERS if re.search(rf"[\"'/]{name}[\"'/]", text_of(file)) for f in files_in(ROOT / name))


class Inputs:
    def __init__(self, build):
        self.graph, self.known = Graph(build), {}
        self.environment = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.split("\n")[0]
        self.environment += text_of(ROOT / "scripts" / "setup.sh")

    def of(self, test):
        """All files that a test's result depends on."""
        key = (test.name, test.command)
        if key not in self.known:
            self.known[key] = frozenset(self.found(test))
        return self.known[key]

    def found(self, test):
        if test.name in SUITES:
            targets, places = SUITES[test.name]
            found = set().union(*(self.graph.files_of(target) for target in targets))
            scripts = [pathlib.Path(word) for word in test.command if word.startswith(str(ROOT)) and pathlib.Path(word).is_file()]
            return found.union(scripts, *(files_in(ROOT / place) for place in places))
        found = set()
        for word in test.command:
            found |= self.of_word(word)
        text = "".join(text_of(file) for file in found if file.suffix == ".py" and file.is_relative_to(ROOT / "tests"))
        for name, value in test.environment.items():
            if name in text:
                found |= self.of_word(value)
        return found

    def of_word(self, word):
        path = pathlib.Path(word)
        if not path.is_absolute() or not path.is_file():
            return set()
        if path.is_relative_to(self.graph.build):
            return set(self.graph.files_of(str(path.relative_to(self.graph.build))))
        if not below_root(path, self.graph.build):
            return set()
        if path.suffix != ".py":
            return {path}
        found = set(modules_of(path))
        if any(file.is_relative_to(PACKAGE) for file in found) or "bimetal" in imported_names(path):
            for target in PACKAGE_TARGETS:
                found |= self.graph.files_of(target)
        for file in list(found):
            if file.is_relative_to(ROOT / "tests"):
                found |= folders_named(file)
        return found

    def hash(self, test):
        total = hashlib.sha256(self.environment.encode())
        files = self.of(test)
        if not files:
            return ""  # nothing is known: it always runs
        for file in sorted(files):
            total.update(f"{file.relative_to(ROOT)} {digest(file)}\n".encode())
        total.update(" ".join(word.rsplit("/", 1)[-1] for word in test.command).encode())
        return total.hexdigest()[:16]


@functools.cache
def digest(file):
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "gone"
