"""Hosts of a small network on one machine: a network namespace each, joined by a bridge, every link shaped to
a rate of its own both ways (tc tbf). Needs root and iproute2; leaves nothing behind but after SIGKILL.
"""

import os
import signal
import subprocess
import sys

# The data that a shaper lets through at once. Small beside a message, but not smaller than what it must let through at
# each of the kernel's ticks to reach its rate.
BURST_S = 0.002
LEAST_BURST = 32 * 1024


def run(*words: str, check: bool = True):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


class Network:
    """Use as a context. rates[i]: bits per second of host i's link."""

    def __init__(self, rates: list[int]):
        self.rates = rates
        self.prefix = f"bm{os.getpid()}"
        self.namespaces = [f"{self.prefix}h{i}" for i in range(len(rates))]
        self.middle = f"{self.prefix}b"

    def address(self, host: int) -> str:
        return f"10.199.0.{host + 1}"

    def command(self, host: int, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespaces[host], *words]

    def __enter__(self):
        self.previous = {number: signal.signal(number, lambda *_: sys.exit(130))
                         for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def make(self):
        run("ip", "netns", "add", self.middle)
        run("ip", "-n", self.middle, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.middle, "link", "set", "bridge", "up")
        for host, (namespace, rate) in enumerate(zip(self.namespaces, self.rates)):
            run("ip", "netns", "add", namespace)
            port = f"port{host}"
            run("ip", "-n", self.middle, "link", "add", port, "type", "veth",
                "peer", "name", "eth0", "netns", namespace)
            run("ip", "-n", self.middle, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", namespace, "link", "set", "lo", "up")
            run("ip", "-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
            burst = max(LEAST_BURST, int(rate / 8 * BURST_S))
            for side, device in ((namespace, "eth0"), (self.middle, port)):
                run("tc", "-n", side, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate}bit",
                    "burst", str(burst), "latency", "50ms")

    def remove(self):
        for namespace in [*self.namespaces, self.middle]:
            run("ip", "netns", "del", namespace, check=False)
