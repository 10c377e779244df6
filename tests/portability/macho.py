"""For check_program.py and check_library.py: reads a file for macOS (Mach-O, 64 bits, little-endian)."""

import struct

PROGRAM, LIBRARY = 2, 6  # kinds of files
SYMTAB, LOAD_DYLIB, CODE_SIGNATURE, BUILD_VERSION, RPATH = 0x2, 0xC, 0x1D, 0x32, 0x8000001C  # load commands
_KINDS = {PROGRAM: "executable", LIBRARY: "library"}
_HEADER = 32


class NotThat(Exception):
    """Why a file is not what it should be."""


def read(data, kind):
    """(processor, [(load command, the bytes of it)]) of a file of that kind. NotThat for another, and for one without a
    signature, of which macOS loads nothing on Apple silicon."""
    _, processor, _, found, count = struct.unpack_from("<5I", data)
    if found != kind:
        raise NotThat(f"Mach-O, but no {_KINDS[kind]}: type {found}")
    commands, at = [], _HEADER
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        commands.append((command, data[at:at + size]))
        at += size
    if CODE_SIGNATURE not in dict(commands):
        raise NotThat("it has no signature")
    return processor, commands


def text_in(command):
    """The text in LOAD_DYLIB and RPATH, which say at which offset it begins."""
    return command[struct.unpack_from("<I", command, 8)[0]:].split(b"\0")[0].decode()
