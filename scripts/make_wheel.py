#!/usr/bin/env python3
"""make_wheel.py TAG LIBRARY FOLDER [PROGRAM…]: the Python package around one shared library of the C interface, and programs
that it starts, as a wheel that any torch fits: bimetal-VERSION-py3-none-TAG.whl in FOLDER. `make wheels` builds the libraries and calls this.

What needs the compiled extension (docs/install.md lists it) is left out.
"""

import pathlib
import subprocess
import sys

import wheel_file
from wheel_file import PROJECT, ROOT

PACKAGE = ROOT / "python" / "bimetal"
AUTOLOAD = ROOT / "python" / "bimetal_autoload"
PARTS = ["__init__.py", "_asked_store.py", "_core.py", "_devices.py", "_errors.py", "_plain_errors.py",
         "_synchronize.py", "_together.py", "_torch_check.py", "device.py", "lightning.py", "process_group.py", "program.py", "py.typed",
         "balance", "command", "elastic", "hf", "library", "pipeline", "tensor", "zero"]
OLDEST_TORCH = "2.4"
# Where there are wheels of the program, as bimetal.command.program has it, too; elsewhere pip would find none, and refuse.
MARKER = ("(sys_platform == 'darwin' and platform_machine == 'arm64') or "
          "(sys_platform == 'linux' and platform_machine == 'x86_64')")
MOST_BYTES = 2_000_000


def package_files():
    for part in PARTS:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield f"bimetal/{file.relative_to(PACKAGE).as_posix()}", file.read_bytes()
    for file in sorted(AUTOLOAD.glob("*.py")):
        yield f"bimetal_autoload/{file.name}", file.read_bytes()


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
    needs = [f"torch>={OLDEST_TORCH}", f"bimetal-program=={wheel_file.VERSION}.*; extra == 'train' and ({MARKER})"]
    wheel = wheel_file.write(folder, "bimetal", tag, files_of(library, programs),
                             executable=[f"bimetal/{file.name}" for file in (library, *programs)], needs=needs,
                             extras=["train"], entry_points=entry_points())
    # The same format, by a longer search than Python's: 4 % less. The files' order, times and modes stay.
    subprocess.run(["advzip", "--recompress", "--shrink-insane", "--quiet", wheel], check=True)
    size = wheel.stat().st_size
    print(f"{wheel}: {size} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{wheel} is larger than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
