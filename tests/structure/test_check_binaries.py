#!/usr/bin/env python3
"""tests/portability/check_program.py and check_library.py on files for macOS and Linux: what each asks of one, it asks."""

import pathlib
import struct
import sys
import tempfile
import unittest

PORTABILITY = pathlib.Path(__file__).parents[1] / "portability"
sys.path.insert(0, str(PORTABILITY))
sys.dont_write_bytecode = True

import check_library  # noqa: E402
import check_program  # noqa: E402
import macho  # noqa: E402

APPLE_SILICON = 0x0100000C
SIGNED = (macho.CODE_SIGNATURE, struct.pack("<II", 0, 0))
FUNCTIONS = sorted({*check_library.FUNCTION.findall(check_library.HEADER.read_text()), "bimetal_lite_main"})


def naming(command, text):
    """A load command that names something, after its own 24 bytes."""
    name = text.encode() + b"\0"
    return command, struct.pack("<I", 24) + bytes(12) + name + bytes(-len(name) % 8)


def image(kind, *commands, after=b""):
    bodies = b"".join(struct.pack("<II", command, 8 + len(body)) + body for command, body in commands)
    header = struct.pack("<8I", 0xFEEDFACF, APPLE_SILICON, 0, kind, len(commands), len(bodies), 0, 0)
    return header + bodies + after


def made_for(oldest):
    return macho.BUILD_VERSION, struct.pack("<4I", 1, oldest, 0, 0)


def library(names, *commands, oldest=0x000B0000):
    """With a table of symbols, which lies behind the load commands."""
    version = made_for(oldest)
    before = len(image(macho.LIBRARY, *commands, version, (macho.SYMTAB, bytes(16))))
    text, entries = b"\0", b""
    for name in names:
        entries += struct.pack("<IBBHQ", len(text), 0x0F, 1, 0, 0)
        text += b"_" + name.encode() + b"\0"
    table = (macho.SYMTAB, struct.pack("<4I", before, len(names), before + len(entries), len(text)))
    return image(macho.LIBRARY, *commands, version, table, after=entries + text)


class Binaries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, data, *libraries, system="aarch64-macos"):
        (self.folder / "program").write_bytes(data)
        try:
            check_program.check(system, self.folder / "program", libraries)
        except macho.NotThat as problem:
            return str(problem)
        return ""

    def library(self, data, system="macos11-aarch64"):
        (self.folder / check_library.SYSTEMS[system][0]).write_bytes(data)
        try:
            check_library.check(system, self.folder)
        except macho.NotThat as problem:
            return str(problem)
        return ""

    def test_programs(self):
        torch = naming(macho.LOAD_DYLIB, "@rpath/libtorch.dylib")
        beside = naming(macho.RPATH, macho.BESIDE_TORCH)
        self.assertEqual(self.program(image(macho.PROGRAM, torch, beside, SIGNED), "libtorch.dylib"), "")
        self.assertIn("not for libc10.dylib", self.program(image(macho.PROGRAM, torch, beside, SIGNED), "libc10.dylib"))
        self.assertIn("looks for libraries in ['/here']",
                      self.program(image(macho.PROGRAM, torch, naming(macho.RPATH, "/here"), SIGNED)))
        self.assertEqual(self.program(image(macho.PROGRAM, torch, beside)), "it has no signature")
        self.assertIn("no executable: type 6", self.program(image(macho.LIBRARY, SIGNED)))

    def test_programs_of_wheels(self):
        def mac(*commands):
            return self.program(image(macho.PROGRAM, *commands), system="macos11-aarch64")

        self.assertEqual(mac(SIGNED, made_for(0x000B0000)), "")
        self.assertEqual(mac(SIGNED, made_for(0x000E0000)), "it needs macOS 14.0")
        self.assertEqual(mac(SIGNED), "it does not say which macOS it needs")
        self.assertEqual(mac(made_for(0x000B0000)), "it has no signature")

        def linux(processor, *versions, system="manylinux-aarch64"):
            return self.program(b"\x7fELF" + bytes(12) + struct.pack("<HH", 3, processor) + b"\0".join(versions), system=system)

        self.assertEqual(linux(183, b"GLIBC_2.2.5", b"GLIBC_2.17"), "")
        self.assertEqual(linux(183, b"GLIBC_2.17", b"GLIBC_2.34"), "it needs glibc 2.34")
        self.assertIn("for processor 0x3e, not 0xb7", linux(62))
        self.assertEqual(linux(62, b"GLIBC_2.17", system="manylinux-x86_64"), "")

    def test_libraries(self):
        self.assertEqual(self.library(library(FUNCTIONS, SIGNED)), "")
        self.assertIn(f"lacks ['{FUNCTIONS[0]}']", self.library(library(FUNCTIONS[1:], SIGNED)))
        self.assertIn("shows ['sodium_init']", self.library(library([*FUNCTIONS, "sodium_init"], SIGNED)))
        self.assertEqual(self.library(library(FUNCTIONS, SIGNED, oldest=0x000C0100)), "it needs macOS 12.1")
        self.assertEqual(self.library(library(FUNCTIONS)), "it has no signature")
        self.assertIn("no library: type 2", self.library(image(macho.PROGRAM, SIGNED)))

    def test_the_torch_library(self):
        functions = [*FUNCTIONS, "bimetal_torch_names", "bimetal_torch_call"]
        functions.remove("bimetal_lite_main")
        beside = naming(macho.LOAD_DYLIB, "@rpath/libtorch.dylib"), naming(macho.RPATH, macho.BESIDE_TORCH)

        def torch(names, *commands, oldest=0x000E0000):
            return self.library(library(names, *commands, SIGNED, oldest=oldest), "aarch64-macos")

        self.assertEqual(torch(functions, *beside), "")
        self.assertIn("lacks ['bimetal_torch_names']", torch([name for name in functions if name != "bimetal_torch_names"], *beside))
        self.assertEqual(torch(functions, *beside, oldest=0x000F0000), "it needs macOS 15.0")
        self.assertEqual(torch(functions), "it needs macOS 14.0")  # the core's own oldest, where torch is not asked for
        self.assertIn("looks for libraries in []", torch(functions, beside[0]))


if __name__ == "__main__":
    unittest.main()
