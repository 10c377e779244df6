#!/usr/bin/env python3
"""make_program_wheel.py PROGRAM TORCH TAG FOLDER [LIBRARY]: the program, the one with torch beside it that it becomes, and the torch library
of the package, as a wheel that depends on the torch minor version whose libraries they were linked with:
bimetal_program-VERSION.post213-py3-none-TAG.whl in FOLDER for torch 2.13, so that those for several torches can lie in one place and pip
takes the one that fits. `bimetal train` of the package hands on to the program, and bimetal.zero and its like use the library.
"""

import pathlib
import sys

import wheel_file

ABOUT = """The program of bimetal, for `bimetal train` and its like (bimetal.command.program finds it), and what bimetal.zero and its like
need (bimetal._torch_check does)."""
PROGRAMS = ("bimetal", "bimetal-torch")  # the first becomes the other where torch is needed


def main():
    program, torch, tag, folder = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    files = [("bimetal_program/__init__.py", f'"""{ABOUT}"""\n'.encode()), ("bimetal_program/torch_version", f"{torch}\n".encode()),
             *((f"bimetal_program/{name}", program.with_name(name).read_bytes()) for name in PROGRAMS)]
    files += [(f"bimetal_program/{file.name}", file.read_bytes()) for file in map(pathlib.Path, sys.argv[5:])]
    version = f"{wheel_file.VERSION}.post{torch.replace('.', '')}"
    wheel = wheel_file.write(folder, "bimetal-program", tag, files, version=version, needs=[f"torch=={torch}.*"],
                             executable=[f"bimetal_program/{name}" for name in PROGRAMS],
                             summary="The program of bimetal, for training by a job file")
    print(f"{wheel}: {wheel.stat().st_size} bytes")


if __name__ == "__main__":
    main()
