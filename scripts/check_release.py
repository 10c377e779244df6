#!/usr/bin/env python3
"""check_release.py [ROOT]: what has to hold before a release is made. Prints the version, or each offence; exits with 1 if
there is any.

The version stands in CMakeLists.txt alone: everything else takes it from there (cmake/torch_tag.py), and CHANGELOG.md begins
with what is in it.
"""

import pathlib
import re
import sys

# Files in which a number that equals the version would be a second place to change. Documentation and comments may have
# it as an example.
CODE = ("pyproject.toml", "Makefile", "cmake/**/*", "scripts/*", "python/**/*.py", "python/**/*.in", "src/**/*.cpp", "src/**/*.h")
COMMENT = re.compile(r"^\s*(#|//|/?\*)")


def version_of(root):
    return re.search(r"project\(bimetal VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())[1]


def offences(root):
    version = version_of(root)
    changelog = root / "CHANGELOG.md"
    headings = re.findall(r"^## (\S+)", changelog.read_text(), re.MULTILINE) if changelog.exists() else []
    if headings[:1] != [version]:
        yield f"CHANGELOG.md: its first heading is {headings[:1] or 'missing'}, the version in CMakeLists.txt {version}"
    repeated = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    for pattern in CODE:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and path.suffix != ".pyc":
                yield from repeats(path, repeated, root)


def repeats(path, repeated, root):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if repeated.search(line) and not COMMENT.match(line):
            yield f"{path.relative_to(root)}:{number}: repeats the version, which stands in CMakeLists.txt"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    found = list(offences(root))
    print("\n".join(found) or version_of(root))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
