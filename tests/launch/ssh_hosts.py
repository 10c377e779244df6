"""A real sshd of the test's own, on loopback addresses or in a network namespace, with a key made for it."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

import daemons


def why_not():
    """None where an sshd can be started, else the reason."""
    if not find_sshd() or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        return "no sshd or ssh here (Debian: apt-get install openssh-server openssh-client)"
    if os.geteuid() != 0:
        return "sshd lets nobody in unless it runs as root"
    return None


def find_sshd():
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


class Keys:
    """The key of the user and that of the hosts."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(mode=0o700)
        for name in ("user", "host", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")

    def options(self, key="user"):
        """For `bimetal launch`: this key alone, and nothing of the user's own settings."""
        values = ["UserKnownHostsFile=" + str(self.folder / "known"), "StrictHostKeyChecking=accept-new",
                  "IdentityFile=" + str(self.folder / key), "IdentitiesOnly=yes"]
        return [word for value in values for word in ("--ssh-option", value)]


class Sshd:
    """Serves `addresses`; sessions get `environment`. `inside` is a command to run it by (ip netns exec …)."""

    def __init__(self, keys, addresses, environment, inside=()):
        self.port = free_port(addresses, inside)
        config = keys.folder / f"config-{self.port}"
        lines = [f"Port {self.port}", *(f"ListenAddress {address}" for address in addresses),
                 f"HostKey {keys.folder / 'host'}", f"AuthorizedKeysFile {keys.folder / 'authorized'}",
                 "PidFile none", "UsePAM no", "StrictModes no", "PermitRootLogin yes", "PasswordAuthentication no",
                 "KbdInteractiveAuthentication no", "MaxStartups 100",
                 "SetEnv " + " ".join(f'"{name}={value}"' for name, value in environment.items())]
        config.write_text("\n".join(lines) + "\n")
        os.makedirs("/run/sshd", exist_ok=True)  # it insists on this folder
        self.log = open(keys.folder / f"log-{self.port}", "wb")
        self.process = daemons.start([*inside, find_sshd(), "-D", "-e", "-f", config], self.log)
        self.wait_until_it_listens(addresses[0], inside)

    def wait_until_it_listens(self, address, inside):
        end = time.monotonic() + 30
        probe = [*inside, "ssh-keyscan", "-T", "2", "-p", str(self.port), address]
        while not subprocess.run(probe, capture_output=True, check=False).stdout:
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise AssertionError(f"sshd does not listen: {pathlib.Path(self.log.name).read_text()}")
            time.sleep(0.1)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def free_port(addresses, inside):
    if inside:
        return 2222  # a namespace has all of its ports free
    with socket.socket() as probe:
        probe.bind((addresses[0], 0))
        return probe.getsockname()[1]
