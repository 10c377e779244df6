"""Two hosts on one machine: network namespaces joined by a veth pair of limited rate (tc tbf)."""

import contextlib
import os
import signal
import subprocess
import sys

WIRE = "wire0"


def _run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class Hosts:
    """A context: `names` are network namespaces, `addresses` theirs on the link. Needs root.

    Gone after every exit but SIGKILL of this process; names carry its number, so that what such an
    exit leaves is in nobody's way (`ip netns delete`, which ends the link too).
    """

    def __init__(self):
        self.names = [f"bimetal-{os.getpid()}-{i}" for i in range(2)]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def __enter__(self):
        for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C already does
            signal.signal(ending, lambda number, frame: sys.exit(128 + number))
        with contextlib.ExitStack() as stack:
            for name in self.names:
                _run("ip", "netns", "add", name)
                stack.callback(_run, "ip", "netns", "delete", name)
            a, b = self.names
            _run("ip", "-n", a, "link", "add", "name", WIRE, "type", "veth", "peer", "name", WIRE, "netns", b)
            for name, address in zip(self.names, self.addresses):
                _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", WIRE)
                _run("ip", "-n", name, "link", "set", WIRE, "up")
                _run("ip", "-n", name, "link", "set", "lo", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def limit(self, bits_per_second):
        """Each direction of the link carries no more, headers of Ethernet included."""
        # A tick's worth of bytes at least, or the limiter stays below its rate.
        burst = max(32 * 1024, bits_per_second // 8 // 250)
        for name in self.names:
            _run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", WIRE, "root", "tbf",
                 "rate", f"{bits_per_second}bit", "burst", str(burst), "latency", "50ms")

    @staticmethod
    def on(name, command):
        """The command line that runs `command` on that host."""
        return ["ip", "netns", "exec", name, *command]
