"""The oldest systems that the wheels' tags promise, and whether a file of one needs a newer one."""

import re
import struct

import macho
from macho import NotThat

_GLIBC = (2, 17)  # manylinux2014
OF_CORE, OF_TORCH = (11, 0), (14, 0)  # macOS: of the core's wheels, and of torch's own


def check_glibc(data):
    """Checks an ELF file. NotThat if it asks for a newer one."""
    newest = max(((int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)), default=(0, 0))
    if newest > _GLIBC:
        raise NotThat(f"it needs glibc {newest[0]}.{newest[1]}")


def check_macos(commands, newest):
    """Checks a Mach-O file's load commands. NotThat if they name a newer one than `newest`, or none."""
    bodies = [body for command, body in commands if command == macho.BUILD_VERSION]
    if not bodies:
        raise NotThat("it does not say which macOS it needs")
    for body in bodies:
        oldest, = struct.unpack_from("<I", body, 12)
        if (oldest >> 16, oldest >> 8 & 255) > newest:
            raise NotThat(f"it needs macOS {oldest >> 16}.{oldest >> 8 & 255}")
