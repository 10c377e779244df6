#!/usr/bin/env python3
"""`bimetal doctor` where something keeps two machines apart, caused for real: what it says is typed, and then they meet."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "fault")]
import harness  # noqa: E402
import namespaces  # noqa: E402
from namespaces import cable  # noqa: E402

SECONDS = 120 * harness.PATIENCE
PORT = 29533
PYTHON = str(harness.REPOSITORY / ".venv" / "bin" / "python")


class Doctors(unittest.TestCase):
    """Three hosts on one switch: two machines, and a router that others hear, too."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="bimetal-test-")
        self.addCleanup(folder.cleanup)
        self.token = pathlib.Path(folder.name, "token")
        self.token.write_text("3" * 64)
        self.token.chmod(0o600)
        self.switch, *self.hosts = (namespaces.Host() for _ in range(4))
        for host in (self.switch, *self.hosts):
            self.addCleanup(host.remove)
        self.switch.ip("link", "add", "bridge", "type", "bridge")
        self.switch.ip("link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts, 1):
            cable(self.switch, f"port{number}", host, "eth0")
            self.switch.ip("link", "set", f"port{number}", "master", "bridge")
            self.switch.ip("link", "set", f"port{number}", "up")
            host.address("eth0", f"10.77.0.{number}/24")
        for host in self.hosts[:2]:
            host.ip("route", "add", "default", "via", "10.77.0.3")

    def doctor(self, host, *words, **variables):
        ours = {name: value for name, value in os.environ.items() if not name.startswith("BIMETAL_") and name != "WSL_DISTRO_NAME"}
        command = [*self.hosts[host].command(), PYTHON, "-m", "bimetal.command", "doctor", *map(str, words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"PYTHONPATH": str(harness.REPOSITORY / "build" / "python"), **ours, **variables})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def said(self, process):
        return process.communicate(timeout=SECONDS)[0]

    def both(self, wait=60):
        """The output of the doctor that listens, and of the one that calls it."""
        address = f"10.77.0.1:{PORT}"
        words = ["--token-file", self.token, "--wait", wait]
        listens = self.doctor(0, "--listen", address, *words)
        calls = self.doctor(1, address, *words)
        return self.said(calls), listens

    def assert_they_meet(self):
        said, listens = self.both()
        for text in (said, self.said(listens)):
            self.assertIn("connections: in both directions", text)
            self.assertRegex(text, r"link: .* Mbit/s from here")

    def type_on(self, host, command):
        """As the host's owner does, who is root here."""
        command = re.sub(r"\bsudo ", "", command)
        done = subprocess.run([*self.hosts[host].command(), "sh", "-c", command], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, command + done.stderr)

    def vpn(self, host, *routes):
        self.hosts[host].ip("tuntap", "add", "vpn0", "mode", "tun")
        self.hosts[host].address("vpn0", "10.99.0.2/24")
        for route in routes:
            self.hosts[host].ip("route", "replace", route, "dev", "vpn0")

    def test_nothing_is_in_the_way(self):
        self.assertNotIn("\n! ", self.said(self.doctor(0)))
        self.assert_they_meet()

    def test_a_vpn_has_the_default_route(self):
        self.vpn(0, "default")
        said = self.said(self.doctor(0))
        advice = re.search(r"! the VPN of vpn0 has taken the default route.* export (BIMETAL_INTERFACE)=(eth0),", said)
        self.assertTrue(advice, said)
        self.assertNotIn("vpn0 has taken", self.said(self.doctor(0, **{advice[1]: advice[2]})))

    def test_a_vpn_has_the_way_to_the_other_machine(self):
        self.vpn(1, "10.77.0.0/25")
        said, listens = self.both(wait=8)
        listens.kill()
        advice = re.search(r"the VPN of vpn0 has taken the way there: (.*), or end the VPN", said)
        self.assertTrue(advice, said)
        self.type_on(1, advice[1])
        self.assert_they_meet()

    def test_the_network_keeps_its_guests_apart(self):
        for port in ("port1", "port2"):
            self.bridge(port, "on")
        said, listens = self.both(wait=8)
        listens.kill()
        self.assertIn("10.77.0.1 does not answer on eth0 at all, though others do", said)
        self.assertIn("keeps its guests apart", said)
        for port in ("port1", "port2"):
            self.bridge(port, "off")
        self.assert_they_meet()

    def bridge(self, port, isolated):
        subprocess.run([*self.switch.command(), "bridge", "link", "set", "dev", port, "isolated", isolated], check=True)

    @unittest.skipUnless(shutil.which("iptables", path=os.environ.get("PATH", "") + ":/usr/sbin"), "no program iptables")
    def test_a_firewall_on_the_one_that_listens(self):
        self.close_firewall(0)
        said, listens = self.both(wait=8)
        self.assertIn("10.77.0.1 is there, and lets nothing in", said)
        listens.kill()
        there = self.said(listens)
        advice = re.search(r"on this machine: (.*)", there)
        self.assertTrue(advice, there)
        self.open_firewall(0, advice[1], "10.77.0.2")
        self.assert_they_meet()

    @unittest.skipUnless(shutil.which("iptables", path=os.environ.get("PATH", "") + ":/usr/sbin"), "no program iptables")
    def test_a_firewall_on_the_one_that_calls(self):
        self.close_firewall(1)
        said, listens = self.both()
        listens.wait(SECONDS)
        advice = re.search(r"cannot be reached from the machine that listens .*; there: (.*)", said)
        self.assertTrue(advice, said)
        self.open_firewall(1, advice[1], "10.77.0.1")
        self.assert_they_meet()

    def close_firewall(self, host):
        """As those of desktops are: what comes in was asked for, and what is dropped is dropped without a word."""
        self.type_on(host, "iptables -P INPUT DROP && iptables -A INPUT -i lo -j ACCEPT && "
                           "iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT")

    def open_firewall(self, host, advice, peer):
        """The advice is for the first tool that this machine has. The rule that stops packets here is of iptables."""
        if not advice.startswith("sudo iptables"):
            advice = f"iptables -I INPUT -p tcp -s {peer} -j ACCEPT"
        self.type_on(host, advice.replace("IPV4.OF.THAT.ONE", peer))

    def test_wsl_behind_nat(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "wslinfo")
            for mode, wrong in (("nat", True), ("mirrored", False)):
                tool.write_text(f"#!/bin/sh\necho {mode}\n")
                tool.chmod(0o755)
                said = self.said(self.doctor(0, WSL_DISTRO_NAME="Debian", PATH=f"{folder}:{os.environ['PATH']}"))
                self.assertIs("WSL2 is behind NAT" in said, wrong, said)
                self.assertIs("networkingMode=mirrored" in said, wrong, said)


if __name__ == "__main__":
    missing = namespaces.why_not()
    if missing or os.geteuid() != 0:
        print(f"skipped: {missing or 'needs root'}")
        sys.exit(77)
    unittest.main(verbosity=2)
