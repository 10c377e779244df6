#!/usr/bin/env python3
"""check_program.py SYSTEM PROGRAM [LIBRARY…]: reads a program's own header, and fails unless it is an
executable for that system and processor which asks the loader for the libraries named. This machine
needs no tools for the other system then.
"""

import platform
import struct
import sys

WINDOWS, LINUX, MACOS = "Windows", "Linux", "macOS"
SYSTEMS = {  # system, processor
    "x86_64-windows": (WINDOWS, 0x8664),
    "aarch64-linux": (LINUX, 183),
    "native": (LINUX, {"x86_64": 62, "aarch64": 183}),
    "aarch64-macos": (MACOS, 0x0100000C),
}
BESIDE_TORCH = "@loader_path/../torch/lib"  # of a wheel, which lies beside the installed torch


class NotThat(Exception):
    pass


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
    """mach_header_64 and its load commands; LC_LOAD_DYLIB is 0xc and LC_RPATH 0x8000001c, a name at an offset in each;
    LC_CODE_SIGNATURE is 0x1d, without which Apple silicon runs nothing."""
    _, processor, _, kind, commands = struct.unpack_from("<5I", data)
    if kind != 2:
        raise NotThat(f"Mach-O, but no executable: type {kind}")
    libraries, folders, signed, at = [], [], False, 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command in (0xC, 0x8000001C):
            name = at + struct.unpack_from("<I", data, at + 8)[0]
            text = data[name:at + size].split(b"\0")[0].decode()
            (libraries if command == 0xC else folders).append(text)
        signed |= command == 0x1D
        at += size
    if any(library.startswith("@rpath/libtorch") for library in libraries) and folders != [BESIDE_TORCH]:
        raise NotThat(f"looks for libraries in {folders}, not in {BESIDE_TORCH} alone")
    if not signed:
        raise NotThat("it has no signature")
    return processor, libraries


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
