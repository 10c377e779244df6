"""Starts fabric_peer processes, for this operating system or another, as the ranks of one group."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PATIENCE_S = 240  # Wine's and qemu's ranks on a busy machine of two cores


def have_ipv6():
    """Whether this machine has ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Kind:
    """How ranks for one operating system are started, if they can be here."""

    def __init__(self, name, program, runner=()):
        self.name = name
        self.program = os.environ.get(program, "")
        self.runner = list(runner)
        self.missing = None
        if not self.program or not os.path.exists(self.program):
            self.missing = f"no program for {name} ({program})"
        elif self.runner and not shutil.which(self.runner[0]):
            self.missing = f"no {os.path.basename(self.runner[0])}, which runs {name} programs"

    def command(self, *arguments):
        return [*self.runner, self.program, *arguments]


WINE = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "wine.sh"), os.environ.get("WINE_FOLDER", ""), "run"]


def kinds_of(program):
    """Linux, Windows by Wine and ARM64 Linux by qemu, whose programs the variables PROGRAM, PROGRAM_WINDOWS and PROGRAM_ARM64 name."""
    return (Kind("Linux", program), Kind("Windows", f"{program}_WINDOWS", WINE),
            Kind("ARM64 Linux", f"{program}_ARM64", ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]))


LINUX, WINDOWS, ARM64 = kinds_of("FABRIC_PEER")


class Peer:
    """One rank in the background. Its whole process group goes when the test is over, or the tests."""

    started = []

    def __init__(self, command, environment):
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.out, stderr=subprocess.STDOUT,
            env={**os.environ, **environment}, start_new_session=True)
        Peer.started.append(self)

    def output(self):
        # By pread, since the peer writes where this process's reading would leave the offset.
        size = os.fstat(self.out.fileno()).st_size
        text = os.pread(self.out.fileno(), size, 0)
        return text.decode(errors="replace").replace("\r\n", "\n")

    def expect(self, text):
        """Waits until the peer has said `text`."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.output():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"waited in vain for '{text}':\n{self.output()}")
            time.sleep(0.02)

    def wait(self, seconds=PATIENCE_S):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a rank hangs; it said:\n{self.output()}") from None

    def kill(self):
        if self not in Peer.started:
            return
        Peer.started.remove(self)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()


def main():
    """Runs the file's tests; says what was skipped, and ends with 77 where all of them were."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    result = unittest.main(verbosity=2, exit=False).result
    if result.skipped and result.wasSuccessful():
        print("; ".join(sorted({reason for _, reason in result.skipped})))
        sys.exit(77 if len(result.skipped) == result.testsRun else 0)
    sys.exit(not result.wasSuccessful())


@atexit.register
def kill_all():
    for peer in list(Peer.started):
        peer.kill()


def start(kinds, *arguments, master="127.0.0.1", environment=None, of_each=None):
    """One peer for each kind, in the order of ranks, on this host: with `environment`, and each with
    its own of the list `of_each`."""
    port = str(free_port())
    peers = []
    for rank, kind in enumerate(kinds):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(kinds)), "LOCAL_RANK": str(rank),
                 "MASTER_ADDR": master, "MASTER_PORT": port}
        own = of_each[rank] if of_each else {}
        peers.append(Peer(kind.command(*arguments), {**(environment or {}), **own, **place}))
    return peers


class PeerTest(unittest.TestCase):
    """Tests of such groups; what cannot be started here is skipped by name."""

    lost = "rank 1"  # how its loss is told

    def start(self, kinds, *arguments, **options):
        for kind in kinds:
            if kind.missing:
                self.skipTest(kind.missing)
        peers = start(kinds, *arguments, **options)
        for peer in peers:
            self.addCleanup(peer.out.close)
            self.addCleanup(peer.kill)
        return peers

    def lose(self, *kinds, **options):
        """Rank 1 is killed while all wait; rank 0 must name it soon."""
        peers = self.start(kinds, "linger", **options)
        for peer in peers:
            peer.expect("lingers")
        os.killpg(peers[1].process.pid, signal.SIGKILL)
        begun = time.monotonic()
        self.assertNotEqual(peers[0].wait(), 0)
        self.assertLess(time.monotonic() - begun, 30)  # a second where the machine is quiet
        self.assertRegex(peers[0].output(), rf"error: peer_lost: .*{self.lost}")
