"""mDNS responders for hosts of namespaces.py and bench/shaped_network.py: each host has an avahi-daemon of its own, on a
D-Bus of its own."""

import ctypes.util
import os
import shutil
import subprocess
import time

BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>"""


def why_not():
    """None where responders can be had, else the reason."""
    missing = [name for name in ("avahi-daemon", "dbus-daemon") if not shutil.which(name)]
    if not ctypes.util.find_library("dns_sd"):
        missing.append("libdns_sd (libavahi-compat-libdnssd1)")
    return f"no {', '.join(missing)}" if missing else None


class Responder:
    def __init__(self, command, folder, name):
        """`command`: what puts a program on the host."""
        folder.mkdir()
        self.bus = folder / "bus"
        (folder / "bus.conf").write_text(BUS.format(self.bus))
        (folder / "avahi.conf").write_text(f"[server]\nhost-name={name}\nuse-ipv6=no\n[wide-area]\nenable-wide-area=no\n")
        self.environment = {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={self.bus}"}
        self.log = open(folder / "log", "w+", encoding="utf-8")
        self.processes = []
        self.start(command("dbus-daemon", "--nofork", "--nopidfile", "--config-file", folder / "bus.conf"))
        self.wait(self.bus.exists)
        # Its place for a PID is the same on all hosts.
        mine = ("mkdir -p /run/avahi-daemon && mount -t tmpfs tmpfs /run/avahi-daemon && "
                f"exec avahi-daemon --no-drop-root --no-chroot --no-rlimits -f {folder / 'avahi.conf'}")
        self.start(command("unshare", "-m", "sh", "-c", mine))
        self.wait(lambda: "startup complete" in (folder / "log").read_text())

    def start(self, command):
        self.processes.append(subprocess.Popen([str(word) for word in command], env=dict(os.environ, **self.environment),
                                               stdout=self.log, stderr=self.log))

    @staticmethod
    def wait(condition):
        until = time.monotonic() + 30
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError("an mDNS responder has not come up")
            time.sleep(0.05)

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
        self.log.close()
