"""For check_program.py and check_library.py: reads a file for macOS (Mach-O, 64 bits, little-endian)."""

import struct

PROGRAM, LIBRARY = 2, 6  # kinds of files
SYMTAB, LOAD_DYLIB, CODE_SIGNATURE, BUILD_VERSION, RPATH = 0x2, 0xC, 0x1D, 0x32, 0x8000001C  # load commands
_KINDS = {PROGRAM: "executable", LIBRARY: "library"}
_HEADER = 32
BESIDE_TORCH = "@loader_path/../torch/lib"  # of a wheel, which lies beside the installed torch


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


def libraries(commands):
    """Those that the file asks for. NotThat if torch's are among them, and it looks for them elsewhere than beside itself."""
    asked = [text_in(body) for command, body in commands if command == LOAD_DYLIB]
    folders = [text_in(body) for command, body in commands if command == RPATH]
    if any(library.startswith("@rpath/libtorch") for library in asked) and folders != [BESIDE_TORCH]:
        raise NotThat(f"looks for libraries in {folders}, not in {BESIDE_TORCH} alone")
    return asked
