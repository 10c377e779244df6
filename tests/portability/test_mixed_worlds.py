#!/usr/bin/env python3
"""Ranks of several operating systems and processors in one group, on loopback: every collective
against the plain reference, a call on which the ranks disagree, and the loss of a rank.

The programs come from the environment: FABRIC_PEER (this system), FABRIC_PEER_WINDOWS (run by Wine),
FABRIC_PEER_ARM64 (run by qemu). What is not there is skipped by name: scripts/portability.sh.
"""

import os
import re
import signal
import sys
import time
import unittest

from peers import ARM64, LINUX, WINDOWS, start


class MixedWorlds(unittest.TestCase):
    def start(self, kinds, *arguments, **options):
        for kind in kinds:
            if kind.missing:
                self.skipTest(kind.missing)
        peers = start(kinds, *arguments, **options)
        for peer in peers:
            self.addCleanup(peer.out.close)
            self.addCleanup(peer.kill)
        return peers

    def check(self, *kinds, **options):
        peers = self.start(kinds, **options)
        for rank, (kind, peer) in enumerate(zip(kinds, peers)):
            with self.subTest(rank=rank, system=kind.name):
                status = peer.wait()
                self.assertEqual(status, 0, peer.output())
                result = re.search(r"rank (\d+) of (\d+) on (.*): (\d+) calls, 0 wrong", peer.output())
                self.assertIsNotNone(result, peer.output())
                self.assertEqual((int(result[1]), int(result[2])), (rank, len(kinds)))
                self.assertGreater(int(result[4]), 500)
                system = kind.name.split()[-1]
                self.assertTrue(result[3].startswith(system), result[3])

    def test_linux_alone(self):
        self.check(LINUX, LINUX)

    def test_linux_and_windows(self):
        self.check(LINUX, WINDOWS)

    def test_windows_serves_the_store_and_leads(self):
        self.check(WINDOWS, LINUX)

    def test_two_linux_and_windows_with_a_token(self):
        self.check(LINUX, WINDOWS, LINUX, environment={"BIMETAL_TOKEN": "a token for this test"})

    def test_windows_over_ipv6(self):
        self.check(LINUX, WINDOWS, master="::1")

    def test_linux_and_arm64_linux(self):
        self.check(LINUX, ARM64)

    def test_arm64_linux_windows_and_linux(self):
        self.check(ARM64, WINDOWS, LINUX)

    def lose(self, *kinds):
        """Rank 1 is killed while all wait; rank 0 must name it soon."""
        peers = self.start(kinds, "linger")
        for peer in peers:
            peer.expect("lingers")
        os.killpg(peers[1].process.pid, signal.SIGKILL)
        begun = time.monotonic()
        self.assertNotEqual(peers[0].wait(), 0)
        self.assertLess(time.monotonic() - begun, 20)
        self.assertRegex(peers[0].output(), r"error: peer_lost: .*rank 1")

    def test_a_lost_windows_rank_is_named(self):
        self.lose(LINUX, WINDOWS)

    def test_a_lost_linux_rank_is_named_by_windows(self):
        self.lose(WINDOWS, LINUX)

    def test_a_lost_arm64_linux_rank_is_named(self):
        self.lose(LINUX, ARM64)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(unittest.defaultTestLoader.getTestCaseNames(MixedWorlds)))
        sys.exit()
    program = unittest.main(verbosity=2, exit=False)
    if program.result.skipped and program.result.wasSuccessful():
        print("; ".join(reason for _, reason in program.result.skipped))
        sys.exit(77)
    sys.exit(not program.result.wasSuccessful())
