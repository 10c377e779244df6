#!/usr/bin/env python3
"""check_program.py SYSTEM PROGRAM [LIBRARY…]: reads a program's own header, and fails unless it is an
executable for that system and processor which asks the loader for the libraries named, and, as a program
of a wheel, needs no newer system than that one's tag says. This machine needs no tools for the other
system then.
"""

import platform
import struct
import sys

import macho
from macho import NotThat
from oldest_system import OF_CORE, check_glibc, check_macos

WINDOWS, LINUX, MACOS = "Windows", "Linux", "macOS"
SYSTEMS = {  # system, processor
    "x86_64-windows": (WINDOWS, 0x8664),
    "aarch64-linux": (LINUX, 183),
    "native": (LINUX, {"x86_64": 62, "aarch64": 183}),
    "aarch64-macos": (MACOS, 0x0100000C),
    "manylinux-x86_64": (LINUX, 62),
    "manylinux-aarch64": (LINUX, 183),
    "macos11-aarch64": (MACOS, 0x0100000C),
}
OF_WHEELS = {  # and the oldest system
    "manylinux-x86_64": check_glibc,
    "manylinux-aarch64": check_glibc,
    "macos11-aarch64": lambda data: check_macos(macho.read(data, macho.PROGRAM)[1], OF_CORE),
}


def pe_processor(data):
    """PE format, section "COFF file header": after the offset at 0x3c."""
    start = struct.unpack_from("<I", data, 0x3C)[0]
    signature, processor = struct.unpack_from("<4sH", data, start)
    characteristics = struct.unpack_from("<H", data, start + 4 + 18)[0]
    if signature != b"PE\0\0" or not characteristics & 0x0002:
        raise NotThat("no executable in PE format")
    return processor, []


def elf_processor(data):
    """ELF header: e_type (2 executable, 3 position-independent) and e_machine."""
    kind, processor = struct.unpack_from("<HH", data, 16)
    if kind not in (2, 3):
        raise NotThat(f"ELF, but no executable: type {kind}")
    return processor, []


def macho_processor(data):
    """Mach-O, with the libraries that it asks for."""
    processor, commands = macho.read(data, macho.PROGRAM)
    return processor, macho.libraries(commands)


FORMATS = {b"MZ": (WINDOWS, pe_processor), b"\x7fE": (LINUX, elf_processor),
           b"\xcf\xfa": (MACOS, macho_processor)}


def check(system, path, wanted):
    with open(path, "rb") as file:
        data = file.read()
    name, read = FORMATS.get(data[:2], ("no system that is known here", None))
    expected_name, expected = SYSTEMS[system]
    if name != expected_name:
        raise NotThat(f"a program for {name}")
    processor, libraries = read(data)
    if isinstance(expected, dict):
        expected = expected[platform.machine()]
    if processor != expected:
        raise NotThat(f"for processor {processor:#x}, not {expected:#x}")
    if system in OF_WHEELS:
        OF_WHEELS[system](data)
    for library in wanted:
        if not any(found.rsplit("/", 1)[-1] == library for found in libraries):
            raise NotThat(f"asks for {', '.join(libraries) or 'no library'}, not for {library}")
    linked = f" linked with {', '.join(libraries)}" if libraries else ""
    return f"{path}: {len(data)} bytes for {system}{linked}"


if __name__ == "__main__":
    try:
        print(check(sys.argv[1], sys.argv[2], sys.argv[3:]))
    except (NotThat, struct.error, OSError) as problem:
        print(f"{sys.argv[2]} is no program for {sys.argv[1]}: {problem}")
        sys.exit(1)
