#!/usr/bin/env python3
"""Writes the cases of unittest files as tests of CTest's, one each: `list_cases.py OUTPUT PREFIX PYTHON PROPERTIES FILE…`.

CTest calls it (cmake/PythonCases.cmake). A file named test_mesh.py with a class Mesh becomes `PREFIX.mesh.Mesh.test_…`.
PROPERTIES are CTest's, for all of them. A case whose class or function has the attribute `alone` (tests/fault/harness.py)
runs with nothing beside it. One with `waits` takes one of CTest's processors, others take two. Labels come from
tests/make_test.txt: a case that it does not name is left to `make test-all`.
"""

import importlib.util
import pathlib
import sys
import unittest

REST = "rest"


def wanted(name, patterns):
    """Whether a line of tests/make_test.txt is that test, or something that it lies in (`fault.mesh`, `fault.mesh.Mesh`)."""
    return any(name == line or name.startswith(f"{line}.") for line in patterns)


def make_test_lines(folder):
    text = (pathlib.Path(folder) / "make_test.txt").read_text()
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def cases_of(file):
    """(class name, method name, class) of each case, in the order of the file."""
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # classes are looked up in it
    spec.loader.exec_module(module)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == file.stem:
            for method in unittest.defaultTestLoader.getTestCaseNames(value):
                yield value.__name__, method, value


def test_lines(prefix, python, properties, file, named):
    topic = file.stem.removeprefix("test_")
    for kind, method, owner in cases_of(file):
        name = f"{prefix}.{topic}.{kind}.{method}"
        function = getattr(owner, method)

        def marked(mark, function=function, owner=owner):
            return getattr(function, mark, None) or getattr(owner, mark, None)

        yield f"add_test([=[{name}]=] [=[{python}]=] [=[{file}]=] [=[{kind}.{method}]=])"
        yield f"set_tests_properties([=[{name}]=] PROPERTIES {properties})"
        yield f"set_tests_properties([=[{name}]=] PROPERTIES PROCESSORS {1 if marked('waits') else 2})"
        if marked("alone"):
            yield f"set_tests_properties([=[{name}]=] PROPERTIES RUN_SERIAL ON)"
        labels = [prefix] + ([] if wanted(name, named) else [REST])
        yield f"set_tests_properties([=[{name}]=] PROPERTIES LABELS [=[{';'.join(labels)}]=])"


def main():
    output, prefix, python, properties, *files = sys.argv[1:]
    output, files = pathlib.Path(output), [pathlib.Path(file) for file in files]
    tests = pathlib.Path(__file__).resolve().parents[1]
    named = make_test_lines(tests)
    sources = [tests / "make_test.txt", pathlib.Path(__file__), *tests.glob("fault/*.py"), *files[0].parent.glob("*.py")]
    newest = max(path.stat().st_mtime for path in sources)
    if output.exists() and output.stat().st_mtime > newest and prefix in output.read_text()[:200]:
        return
    lines = [f"# {prefix} {len(files)}"]
    for file in files:
        lines += test_lines(prefix, python, properties, file, named)
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
