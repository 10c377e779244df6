#!/usr/bin/env python3
"""Which of several interfaces ranks meet by, on hosts of their own."""

import pathlib
import re
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "portability"))

from namespaces import Host, cable, why_not  # noqa: E402
from peers import LINUX, Peer  # noqa: E402

TOKEN = "the token of these tests"


class Interfaces(unittest.TestCase):
    def host(self):
        host = Host()
        self.addCleanup(host.remove)
        return host

    def pair(self, *addresses):
        """Two hosts with one cable (eth0) and the given (address of a, address of b)."""
        a, b = self.host(), self.host()
        cable(a, "eth0", b, "eth0")
        for of_a, of_b in addresses:
            a.address("eth0", of_a)
            b.address("eth0", of_b)
        return a, b

    def peer(self, host, arguments=(), **environment):
        peer = Peer([*host.command(), *LINUX.command(*arguments)],
                    {"BIMETAL_TOKEN": TOKEN, "FABRIC_PEER_LOG": "1", **environment})
        self.addCleanup(peer.out.close)
        self.addCleanup(peer.kill)
        return peer

    def ranks(self, hosts, masters, **environment):
        """One rank on each host, which finds the store at its entry of `masters`."""
        return [self.peer(host, RANK=str(rank), WORLD_SIZE=str(len(hosts)), LOCAL_RANK="0",
                          LOCAL_WORLD_SIZE="1", MASTER_ADDR=masters[rank], MASTER_PORT="29500",
                          **environment)
                for rank, host in enumerate(hosts)]

    def expect_success(self, peers):
        for peer in peers:
            self.assertEqual(peer.wait(), 0, "\n".join(p.output() for p in peers))
            self.assertIn(", 0 wrong", peer.output())

    def star(self):
        """Two hosts that both reach a third by eth1, which forwards nothing: a packet from one to
        the other's eth1 vanishes without an answer. Returns both and the third."""
        a, b, hub = self.host(), self.host(), self.host()
        cable(a, "eth1", hub, "eth0")
        cable(b, "eth1", hub, "eth1")
        a.address("eth1", "10.2.0.1/24")
        hub.address("eth0", "10.2.0.9/24")
        b.address("eth1", "10.3.0.2/24")
        hub.address("eth1", "10.3.0.9/24")
        a.ip("route", "add", "default", "via", "10.2.0.9")
        b.ip("route", "add", "default", "via", "10.3.0.9")
        store = self.peer(hub, ("store", "0.0.0.0:29500"))
        store.expect("store at")
        return a, b

    def test_an_interface_that_cannot_be_reached_is_passed_by(self):
        a, b = self.star()
        cable(a, "eth0", b, "eth0")
        a.address("eth0", "10.1.0.1/24")
        b.address("eth0", "10.1.0.2/24")
        begun = time.monotonic()
        peers = self.ranks((a, b), ("10.2.0.9", "10.3.0.9"), BIMETAL_STORE="launcher")
        self.expect_success(peers)
        self.assertLess(time.monotonic() - begun, 60)
        self.assertRegex(peers[0].output(), r"rank 0 listens on 10\.2\.0\.1:(?s:.*)on 10\.1\.0\.1:")
        self.assertRegex(peers[1].output(), r"connected to rank 0 \(.*10\.1\.0\.1:")

    def test_without_any_path_the_addresses_tried_are_named(self):
        a, b = self.star()
        peers = self.ranks((a, b), ("10.2.0.9", "10.3.0.9"), BIMETAL_STORE="launcher",
                           FABRIC_PEER_JOIN_S="8")
        self.assertNotEqual(peers[1].wait(), 0)
        self.assertRegex(peers[1].output(), r"error: timeout: .*rank 0 \(.*10\.2\.0\.1:\d+\).*no answer")

    def test_container_bridges_are_never_advertised(self):
        a, b = self.pair(("10.1.0.1/24", "10.1.0.2/24"))
        for host in (a, b):  # every host's engine gives its bridge the same address
            host.bridge("docker0", "172.17.0.1/16")
        peers = self.ranks((a, b), ("10.1.0.1",) * 2)
        self.expect_success(peers)
        for rank, peer in enumerate(peers):
            listens = re.findall(rf"rank {rank} listens on (\S+):\d+", peer.output())
            self.assertEqual(listens, [f"10.1.0.{rank + 1}"])

    def two_cables(self):
        a, b = self.pair(("10.1.0.1/24", "10.1.0.2/24"))
        cable(a, "eth1", b, "eth1")
        a.address("eth1", "10.2.0.1/24")
        b.address("eth1", "10.2.0.2/24")
        return a, b

    def test_the_selected_interface_is_used(self):
        for selection in ("eth1", "10.2.0.0/16"):
            with self.subTest(selection):
                peers = self.ranks(self.two_cables(), ("10.1.0.1",) * 2,
                                   BIMETAL_INTERFACE=selection)
                self.expect_success(peers)
                self.assertRegex(peers[1].output(), r"connected to rank 0 \(.*10\.2\.0\.1:")
                self.assertNotIn("rank 0 listens on 10.1.", peers[0].output())

    def test_a_selection_that_fits_nothing_is_an_error_that_names_what_there_is(self):
        a, b = self.two_cables()
        peers = self.ranks((a, b), ("10.1.0.1",) * 2, BIMETAL_INTERFACE="wlan0")
        self.assertNotEqual(peers[0].wait(), 0)
        self.assertRegex(peers[0].output(),
                         r"error: invalid_argument: BIMETAL_INTERFACE=wlan0 .*eth1 \(10\.2\.0\.1\)")


if __name__ == "__main__":
    reason = LINUX.missing or why_not()
    if reason:
        print(f"network.interfaces skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
