#!/usr/bin/env python3
"""Ranks of several operating systems and processors in one group, on loopback: every collective
against the plain reference, a call on which the ranks disagree, the loss of a rank, and a stranger.

The programs come from the environment: FABRIC_PEER (this system), FABRIC_PEER_WINDOWS (run by the Wine
of WINE_FOLDER), FABRIC_PEER_ARM64 (run by qemu). Missing ones are skipped by name: scripts/portability.sh.
"""

import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import unittest

from peers import ARM64, LINUX, WINDOWS, PeerTest, have_ipv6, main

TOKEN = {"BIMETAL_TOKEN": "a token for these tests"}


class MixedWorlds(PeerTest):
    def check(self, *kinds, by=None, **options):
        peers = self.start(kinds, **options)
        for rank, (kind, peer) in enumerate(zip(kinds, peers)):
            with self.subTest(rank=rank, system=kind.name):
                status = peer.wait()
                self.assertEqual(status, 0, peer.output())
                result = re.search(r"rank (\d+) of (\d+) on (.*): (\d+) calls, 0 wrong, by (\w+)", peer.output())
                self.assertIsNotNone(result, peer.output())
                self.assertEqual((int(result[1]), int(result[2])), (rank, len(kinds)))
                self.assertGreater(int(result[4]), 500)
                system = kind.name.split()[-1]
                self.assertTrue(result[3].startswith(system), result[3])
                if by:
                    self.assertEqual(result[5], by)

    def folder(self, name):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        folder = pathlib.Path(parent.name, name)
        folder.mkdir()
        return folder

    def test_a_token_file_of_windows_in_a_folder_of_any_name(self):
        folder = self.folder("Schlüssel, 日本")
        (folder / "bimetal token.txt").write_bytes(f"{TOKEN['BIMETAL_TOKEN']}\r\n".encode("utf-8-sig"))  # as Notepad does
        in_file = {"BIMETAL_TOKEN_FILE": f"Z:{folder}/bimetal token.txt", "LC_ALL": "C.UTF-8"}
        self.check(LINUX, WINDOWS, of_each=[TOKEN, in_file])

    def test_why_windows_cannot_take_a_token_file(self):
        """In the words of errno, whose numbers are not those of Windows' own errors."""
        folder = self.folder("Schlüssel")
        (folder / "by PowerShell").write_bytes(f"{TOKEN['BIMETAL_TOKEN']}\r\n".encode("utf-16"))
        (folder / "inner").mkdir()
        for name, words in (("inner", "system: cannot read token file .*: Permission denied"),
                            ("missing", "system: cannot read token file .*: No such file or directory"),
                            ("by PowerShell", "invalid_argument: token file .*by PowerShell is in UTF-16")):
            named = {"BIMETAL_TOKEN_FILE": f"Z:{folder}/{name}", "LC_ALL": "C.UTF-8"}
            [peer] = self.start([WINDOWS], environment=named)
            self.assertNotEqual(peer.wait(), 0)
            self.assertRegex(peer.output(), f"error: {words}")

    def test_a_dump_of_windows_in_a_folder_of_any_name(self):
        folder = self.folder("Flüge, 日本")
        self.check(WINDOWS, WINDOWS, environment={"BIMETAL_FLIGHT_RECORDER": f"Z:{folder}", "LC_ALL": "C.UTF-8"})
        for rank in range(2):
            dump = json.loads((folder / f"flight_rank_{rank}.json").read_text(encoding="utf-8"))
            self.assertIn("shared memory", json.dumps(dump))

    def find(self, kind, where):
        [finder] = self.start([kind], "memory", "find", where)
        self.assertEqual(finder.wait(), 0, finder.output())
        return finder.output()

    def hold(self, kind, stranger):
        """A segment is found by its own system alone, wakes who sleeps on it, and is gone with its maker."""
        [holder] = self.start([kind], "memory", "hold")
        holder.expect("memory at ")
        where = re.search(r"memory at (\w+)\n", holder.output())[1]
        self.assertIn("unsupported", self.find(stranger, where))
        self.assertEqual(self.find(kind, where), "found\n")
        holder.expect("woken by 1, 42 written\nforgotten\n")
        self.assertIn("unsupported", self.find(kind, where))
        [holder] = self.start([kind], "memory", "hold")
        holder.expect("memory at ")
        where = re.search(r"memory at (\w+)\n", holder.output())[1]
        os.killpg(holder.process.pid, signal.SIGKILL)
        holder.wait()
        self.assertIn("unsupported", self.find(kind, where))

    def test_memory_of_windows(self):
        self.hold(WINDOWS, LINUX)

    def test_memory_of_linux(self):
        self.hold(LINUX, WINDOWS)

    def pace(self, transport):
        """Median microseconds of an all-reduce between two Windows ranks, by its bytes."""
        peers = self.start([WINDOWS, WINDOWS], "pace", environment={"BIMETAL_TRANSPORT": transport})
        for peer in peers:
            self.assertEqual(peer.wait(), 0, peer.output())
        return {int(size): float(took) for size, took in re.findall(r"pace (\d+): ([\d.]+)", peers[0].output())}

    def test_memory_of_windows_is_faster_than_its_loopback(self):
        memory, loopback = self.pace("shm"), self.pace("tcp")
        self.assertEqual(len(memory), 3)
        ratios = {size: loopback[size] / memory[size] for size in memory}
        print("loopback / memory:", {size: round(ratio, 1) for size, ratio in ratios.items()}, memory, loopback)
        self.assertGreater(min(ratios.values()), 1)

    def refuse(self, *kinds):
        """Rank 1 has another token: it is told so, and rank 0 goes on waiting for the true one."""
        strange = {"BIMETAL_TOKEN": "no token of these tests"}
        peers = self.start(kinds, of_each=[TOKEN, strange])
        self.assertNotEqual(peers[1].wait(), 0)
        self.assertRegex(peers[1].output(), r"error: unauthorized: ")
        self.assertIsNone(peers[0].process.poll(), peers[0].output())
        self.assertEqual(peers[0].output(), "")

    def test_windows_with_a_wrong_token_is_refused(self):
        self.refuse(LINUX, WINDOWS)


WORLDS = {
    "linux_alone": ((LINUX, LINUX), {}), "linux_and_windows": ((LINUX, WINDOWS), {"by": "tcp"}),
    "two_windows_share_memory": ((WINDOWS, WINDOWS), {"by": "shm"}),
    "three_windows_share_memory": ((WINDOWS, WINDOWS, WINDOWS), {"by": "shm", "environment": TOKEN}),
    "two_windows_on_islands_of_their_own": ((WINDOWS, WINDOWS), {
        "by": "tcp", "of_each": [{"BIMETAL_ISLAND": "a"}, {"BIMETAL_ISLAND": "b"}]}),
    "two_linux_and_windows_with_a_token": ((LINUX, WINDOWS, LINUX), {"environment": TOKEN}),
    "windows_serves_two_linux": ((WINDOWS, LINUX, LINUX), {"environment": TOKEN}),
    "two_windows_with_linux_between": ((WINDOWS, LINUX, WINDOWS), {}), "linux_and_arm64_linux": ((LINUX, ARM64), {}),
    "two_arm64_linux_and_linux": ((ARM64, LINUX, ARM64), {}), "arm64_linux_windows_and_linux": ((ARM64, WINDOWS, LINUX), {}),
    "arm64_linux_windows_and_linux_encrypted": ((LINUX, ARM64, WINDOWS), {"environment": {**TOKEN, "BIMETAL_ENCRYPTION": "on"}}),
}
LOST = {"windows": ((LINUX, WINDOWS), {}), "windows_by_memory": ((WINDOWS, WINDOWS), {"environment": {"BIMETAL_TRANSPORT": "shm"}}),
        "arm64_linux": ((LINUX, ARM64), {})}
if have_ipv6():
    WORLDS["windows_over_ipv6"] = ((LINUX, WINDOWS), {"master": "::1"})
for _name, (_kinds, _options) in WORLDS.items():
    setattr(MixedWorlds, f"test_{_name}", lambda self, kinds=_kinds, options=_options: self.check(*kinds, **options))
for _name, (_kinds, _options) in LOST.items():
    setattr(MixedWorlds, f"test_a_lost_{_name}_rank_is_named", lambda self, kinds=_kinds, options=_options: self.lose(*kinds, **options))


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(unittest.defaultTestLoader.getTestCaseNames(MixedWorlds)))
        sys.exit()
    main()
