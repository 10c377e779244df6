#!/usr/bin/env python3
"""make_wheel.py TAG LIBRARY FOLDER [PROGRAM…]: the Python package around one shared library of the C interface, and programs
that it starts, as a wheel that any torch fits: bimetal-VERSION-py3-none-TAG.whl in FOLDER. `make wheels` builds the libraries and calls this.

What needs the compiled extension (docs/install.md lists it) says so where it is called.
"""

import pathlib
import runpy
import subprocess
import sys
import types

import wheel_file
from wheel_file import PROJECT, ROOT

# By its path: the package itself imports torch.
examples = types.SimpleNamespace(**runpy.run_path(str(ROOT / "python" / "bimetal" / "examples" / "__init__.py")))
PACKAGE = ROOT / "python" / "bimetal"
AUTOLOAD = ROOT / "python" / "bimetal_autoload"
OLDEST_TORCH = "2.4"
# The platforms with wheels of the program, as bimetal.command.program has them, too; elsewhere pip would find none, and
# refuse.
MARKER = ("(sys_platform == 'darwin' and platform_machine == 'arm64') or "
          "(sys_platform == 'linux' and platform_machine == 'x86_64')")
EXTRAS = {"ray": "ray>=2.52", "tune": "optuna>=4", "data": "fsspec"}
MOST_BYTES = 2_000_000


def package_files():
    for folder in (PACKAGE, AUTOLOAD):
        for file in sorted([*folder.rglob("*.py"), *folder.glob("py.typed")]):
            yield f"{folder.name}/{file.relative_to(folder).as_posix()}", file.read_bytes()
    for name in examples.names():
        yield f"bimetal/examples/files/{name}", (examples.FOLDER / name).read_bytes()


def entry_points():
    lines = []
    for group, entries in {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    return "\n".join([*lines, ""])


def files_of(library, programs):
    version = wheel_file.VERSION
    yield from package_files()
    yield "bimetal/_build.py", (f'"""What this package was built from. There is no extension in it."""\n\n'
                                f'VERSION = "{version}"\nTORCH = ""\n').encode()
    for file in (library, *programs):
        yield f"bimetal/{file.name}", file.read_bytes()


def main():
    tag, library, folder, *programs = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
    needs = [f"torch>={OLDEST_TORCH}", f"bimetal-program=={wheel_file.VERSION}.*; extra == 'train' and ({MARKER})",
             *(f"{package}; extra == '{extra}'" for extra, package in EXTRAS.items())]
    wheel = wheel_file.write(folder, "bimetal", tag, files_of(library, programs),
                             executable=[f"bimetal/{file.name}" for file in (library, *programs)], needs=needs,
                             extras=["train", *EXTRAS], entry_points=entry_points())
    # The same format, by a longer search than Python's: 4 % less. The files' order, times and modes stay.
    subprocess.run(["advzip", "--recompress", "--shrink-insane", "--quiet", wheel], check=True)
    size = wheel.stat().st_size
    print(f"{wheel}: {size} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{wheel} is larger than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
