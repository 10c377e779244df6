#!/usr/bin/env python3
"""Linux, Windows and ARM64 Linux in one group from the very libraries of the wheels: encrypted, and with a member that is killed.
All else that these libraries do is tested in tests/portability/test_library_peers.py, whose environment this takes.
"""

import pathlib
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "portability"))

from test_library_peers import ARM64, ENCRYPTED, LINUX, WINDOWS, LibraryPeers as Peers  # noqa: E402


class ThreeSystems(Peers):
    def test_every_call_encrypted(self):
        self.check(LINUX, WINDOWS, ARM64, environment=ENCRYPTED)

    def test_windows_serves_all_calls_encrypted(self):
        self.check(WINDOWS, ARM64, LINUX, environment=ENCRYPTED)

    def lose_rank_1(self, *kinds):
        """Rank 0 names it, and nobody is left."""
        peers = self.start(kinds, "linger", environment=ENCRYPTED)
        for peer in peers:
            peer.expect("lingers")
        peers[1].kill()
        begun = time.monotonic()
        for peer in (peers[0], peers[2]):
            self.assertNotEqual(peer.wait(), 0, peer.output())
        self.assertLess(time.monotonic() - begun, 15)
        self.assertRegex(peers[0].output(), r"error: peer_lost: .*\(rank 1\)")

    def test_a_killed_arm64_rank_ends_the_others(self):
        self.lose_rank_1(LINUX, ARM64, WINDOWS)

    def test_a_killed_windows_rank_ends_the_others(self):
        self.lose_rank_1(ARM64, WINDOWS, LINUX)


def load_tests(loader, tests, pattern):
    """Without those of the class that these stand on."""
    del tests, pattern
    own = [name for name in vars(ThreeSystems) if name.startswith("test_")]
    return unittest.TestSuite(map(ThreeSystems, own))


if __name__ == "__main__":
    unittest.main(verbosity=2)
