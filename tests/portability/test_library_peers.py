#!/usr/bin/env python3
"""Ranks that know nothing but the shared library's C interface, of several operating systems in one group: every call,
encryption, a lost rank, and one in Python.

The programs come from the environment: CAPI_PEER (this system), CAPI_PEER_WINDOWS (run by the Wine of WINE_FOLDER),
CAPI_PEER_ARM64 (run by qemu); CAPI_PYTHON is a Python that has the package and torch. Missing ones are skipped.
"""

import os
import subprocess

from peers import Kind, PeerTest, free_port, kinds_of, main

TOKEN = {"BIMETAL_TOKEN": "a token for these tests"}
ENCRYPTED = {**TOKEN, "BIMETAL_ENCRYPTION": "on"}
BY_MEMORY = {"BIMETAL_TRANSPORT": "shm"}  # an error where ranks have none in common

LINUX, WINDOWS, ARM64 = kinds_of("CAPI_PEER")

PYTHON_RANK = """
import ctypes, os, sys
from bimetal.library.interface import Meeting, check, lib, made
address, rank, size = os.environ["BIMETAL_STORE"].encode(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
server = made(lib.server_new, address) if rank == 0 else 0
store = made(lib.store_connect, address, 120000)
meeting = Meeting(ctypes.sizeof(Meeting), store, b"peers", rank, size, 120000, None, None)
group = made(lib.group_meet, ctypes.byref(meeting))
def finish(function, *arguments):
    work = made(function, group, *arguments)
    check(lib.work_wait(work, 120000))
    lib.work_free(work)
finish(lib.barrier, 0)
data = (ctypes.c_double * 3)(rank, 1, 0.5)
finish(lib.all_reduce, ctypes.addressof(data), 3, 2, 1, 0)
assert list(data) == [size * (size - 1) / 2, size, size / 2], list(data)
finish(lib.barrier, 0)
lib.group_free(group), lib.store_free(store), lib.server_free(server)
print(f"rank {rank} of {size}: in Python, 0 wrong", flush=True)
"""


class PythonKind(Kind):
    """A rank that is Python's."""

    def __init__(self):
        super().__init__("Python", "CAPI_PYTHON")

    def command(self, *arguments):
        return [self.program, "-c", PYTHON_RANK]


PYTHON = PythonKind()


class LibraryPeers(PeerTest):
    lost = r"\(rank 1\)"

    def start(self, kinds, *arguments, environment=None):
        store = {"BIMETAL_STORE": f"127.0.0.1:{free_port()}"}
        return super().start(kinds, *arguments, environment={**(environment or {}), **store})

    def check(self, *kinds, mode=(), environment=None):
        for rank, peer in enumerate(self.start(kinds, *mode, environment=environment)):
            self.assertEqual(peer.wait(), 0, peer.output())
            self.assertRegex(peer.output(), rf"rank {rank} of {len(kinds)}: .*, 0 wrong")

    def test_a_lost_linux_rank_is_named(self):
        self.lose(LINUX, LINUX)

    def test_an_argument_that_cannot_work(self):
        if LINUX.missing:
            self.skipTest(LINUX.missing)
        got = subprocess.run(LINUX.command(), capture_output=True, text=True, timeout=60,
                             env={**os.environ, "RANK": "3", "WORLD_SIZE": "2", "BIMETAL_STORE": "nowhere"})
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stdout, r"error: invalid_argument: .*nowhere")

    def test_a_lost_windows_rank_is_named(self):
        self.lose(LINUX, WINDOWS)

    def test_a_lost_windows_rank_is_named_by_one_that_shares_its_memory(self):
        self.lose(WINDOWS, WINDOWS, environment=BY_MEMORY)


WORLDS = {
    "linux_alone": ((LINUX, LINUX, LINUX), {}), "one_alone": ((LINUX,), {}), "python_with_linux": ((LINUX, PYTHON), {"mode": ["brief"]}),
    "linux_encrypted": ((LINUX, LINUX), {"environment": {**ENCRYPTED, "BIMETAL_TRANSPORT": "tcp"}}),
    "arm64_linux_and_linux_encrypted": ((ARM64, LINUX), {"environment": ENCRYPTED}),
    "python_and_arm64_linux": ((PYTHON, ARM64), {"mode": ["brief"]}), "all_systems": ((LINUX, WINDOWS, ARM64), {}),
    "windows_serves_encrypted": ((WINDOWS, LINUX), {"environment": ENCRYPTED}),
    "windows_by_memory_alone": ((WINDOWS, WINDOWS), {"environment": BY_MEMORY}),
    "python_with_all_systems": ((PYTHON, WINDOWS, ARM64, LINUX), {"mode": ["brief"]}),
}
for _name, (_kinds, _options) in WORLDS.items():
    setattr(LibraryPeers, f"test_{_name}", lambda self, kinds=_kinds, options=_options: self.check(*kinds, **options))


if __name__ == "__main__":
    main()
