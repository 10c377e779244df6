#!/usr/bin/env python3
"""check_library.py SYSTEM FOLDER: reads the shared library of the C interface in FOLDER, or (aarch64-macos) the torch library, and
fails unless it is one for that system and processor, shows the functions of bimetal_c.h, its own others (the one by which the
program beside the core enters, those of the torch library) and nothing else, and needs no newer system than its wheel
says. This machine needs no tools for the other system then.
"""

import pathlib
import re
import struct
import sys

import macho
from macho import NotThat
from oldest_system import OF_CORE, OF_TORCH, check_glibc, check_macos

SOURCES = pathlib.Path(__file__).parents[2] / "src" / "bimetal"
HEADER = SOURCES / "capi" / "bimetal_c.h"
TORCH_LIBRARY = SOURCES / "python" / "library.cpp"
# Every Mach-O library has the first two; C++ wants one new and delete in a process, so that these are never hidden there.
OF_EVERY_MACHO = re.compile(r"_mh_dylib_header|__dso_handle|_Z(na|nw|da|dl)\w*")
FUNCTION = re.compile(r"^BIMETAL_C [^;{]*?\b(bimetal_\w+)\(", re.M)
OF_PROGRAM = {"bimetal_lite_main"}  # by which the program beside the core enters
# File, processor, functions beside those of the C interface.
SYSTEMS = {
    "manylinux-x86_64": ("libbimetal_core.so", 62, OF_PROGRAM),
    "manylinux-aarch64": ("libbimetal_core.so", 183, OF_PROGRAM),
    "macos11-aarch64": ("libbimetal_core.dylib", 0x0100000C, OF_PROGRAM),
    "aarch64-macos": ("libbimetal_torch.dylib", 0x0100000C, set(FUNCTION.findall(TORCH_LIBRARY.read_text()))),
    "x86_64-windows": ("libbimetal_core.dll", 0x8664, OF_PROGRAM),
}


def text_at(data, at):
    return data[at:data.index(b"\0", at)].decode()


def elf(data):
    """ELF64: processor, and defined dynamic symbols that are global. Sections 6 and 11 are SHT_DYNAMIC and SHT_DYNSYM."""
    processor = struct.unpack_from("<H", data, 18)[0]
    at, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
    shown = []
    for section in sections:
        if section[1] != 11:
            continue
        names = sections[section[6]][4]
        for entry in range(section[4], section[4] + section[5], 24):
            name, info, _, defined = struct.unpack_from("<IBBH", data, entry)
            if defined and info >> 4 in (1, 2):
                shown.append(text_at(data, names + name))
    check_glibc(data)
    return processor, shown


def pe(data):
    """PE32+: processor, and the names of the export directory."""
    start, = struct.unpack_from("<I", data, 0x3C)
    signature, processor, count = struct.unpack_from("<4sHH", data, start)
    optional, flags = struct.unpack_from("<HH", data, start + 20)
    if signature != b"PE\0\0" or not flags & 0x2000:
        raise NotThat("no library in PE format")
    sections = [struct.unpack_from("<8sIIII", data, start + 24 + optional + i * 40) for i in range(count)]

    def place(address):
        for _, length, begin, _, raw in sections:
            if begin <= address < begin + length:
                return raw + address - begin
        raise NotThat("an address outside its sections")

    directory = place(struct.unpack_from("<I", data, start + 24 + 112)[0])
    named, = struct.unpack_from("<I", data, directory + 24)
    names = place(struct.unpack_from("<I", data, directory + 32)[0])
    return processor, [text_at(data, place(struct.unpack_from("<I", data, names + 4 * i)[0])) for i in range(named)]


def mach_o(data):
    """Mach-O: processor, and defined external symbols."""
    processor, commands = macho.read(data, macho.LIBRARY)
    shown = []
    for command, body in commands:
        if command == macho.SYMTAB:
            symbols, count, names, _ = struct.unpack_from("<4I", body, 8)
            for entry in range(symbols, symbols + 16 * count, 16):
                name, flags = struct.unpack_from("<IB", data, entry)
                if flags & 0xE0 == 0 and flags & 0x0E and flags & 1 and not flags & 0x10:
                    shown.append(text_at(data, names + name).removeprefix("_"))
    beside_torch = any(library.startswith("@rpath/libtorch") for library in macho.libraries(commands))
    check_macos(commands, OF_TORCH if beside_torch else OF_CORE)
    return processor, [name for name in shown if not OF_EVERY_MACHO.fullmatch(name)]


FORMATS = {b"\x7fE": elf, b"MZ": pe, b"\xcf\xfa": mach_o}


def check(system, folder):
    name, wanted, more = SYSTEMS[system]
    path = folder / name
    data = path.read_bytes()
    processor, shown = FORMATS[data[:2]](data)
    if processor != wanted:
        raise NotThat(f"for processor {processor:#x}, not {wanted:#x}")
    functions = set(FUNCTION.findall(HEADER.read_text()))
    if len(functions) < 40 or not more:
        raise NotThat(f"{len(functions)} functions were read from {HEADER}, and {len(more)} others")
    functions |= more
    missing, strange = functions - set(shown), set(shown) - functions
    if missing or strange:
        raise NotThat(f"it lacks {sorted(missing)[:5]} and shows {sorted(strange)[:5]}")
    return f"{path}: {len(data)} bytes for {system}, {len(shown)} functions"


if __name__ == "__main__":
    try:
        print(check(sys.argv[1], pathlib.Path(sys.argv[2])))
    except (NotThat, KeyError, struct.error, OSError) as problem:
        print(f"the library in {sys.argv[2]} is none for {sys.argv[1]}: {problem}")
        sys.exit(1)
