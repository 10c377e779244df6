"""Hosts made of network namespaces, joined by virtual cables. Needs root (or CAP_NET_ADMIN and
CAP_SYS_ADMIN); why_not() says what is missing. Everything is removed with the host."""

import itertools
import os
import shutil
import subprocess

_numbers = itertools.count()


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True)


def why_not():
    """None where namespaces can be made, else the reason."""
    if not shutil.which("ip"):
        return "no program ip (iproute2)"
    probe = Host.__new__(Host)
    probe.name = f"bimetal-{os.getpid()}-probe"
    try:
        ip("netns", "add", probe.name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    probe.remove()
    return None


class Host:
    def __init__(self):
        self.name = f"bimetal-{os.getpid()}-{next(_numbers)}"
        ip("netns", "add", self.name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments):
        ip("-n", self.name, *arguments)

    def address(self, device, *addresses):
        for address in addresses:
            # nodad: an IPv6 address may be used at once.
            self.ip("addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))
        self.ip("link", "set", device, "up")

    def bridge(self, name, address):
        """A bridge as a container engine makes it, with one container's link on it."""
        self.ip("link", "add", name, "type", "bridge")
        self.ip("link", "add", "veth1", "type", "veth", "peer", "name", "veth2")
        self.ip("link", "set", "veth1", "master", name)
        for device in ("veth1", "veth2"):
            self.ip("link", "set", device, "up")
        self.address(name, address)

    def command(self):
        """To be put in front of a command that shall run on this host."""
        return ["ip", "netns", "exec", self.name]

    def remove(self):
        ip("netns", "del", self.name)


def cable(a, device_a, b, device_b):
    ip("link", "add", device_a, "netns", a.name, "type", "veth", "peer", "name", device_b,
       "netns", b.name)
