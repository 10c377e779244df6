"""Bytes that are not Bimetal's, or another version's, on the job's port and from it."""

import contextlib
import re
import socket
import struct
import threading
import time

import harness
from harness import FaultTest, listening_ports

# The part of docs/protocol.md that never changes: magic, version, message, service.
MAGIC = 0x53484D42
PREAMBLE = struct.Struct("<IHBB")
HELLO, REJECT = 1, 5
HELLO_BYTES, REJECT_BYTES = 72, 16
STORE = 2
OTHER_VERSION = 99


class Stranger:
    """A server that reads only the part of a message that never changes, and gives every client `answer`."""

    def __init__(self, test, answer):
        self.answer = answer
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()
        test.addCleanup(self.socket.close)

    def serve(self):
        while True:
            try:
                caller, _ = self.socket.accept()
            except OSError:
                return
            with caller, contextlib.suppress(ConnectionError):  # the caller may hang up first
                caller.recv(PREAMBLE.size, socket.MSG_WAITALL)
                caller.sendall(self.answer)
                while caller.recv(4096):
                    pass


class Strangers(FaultTest):
    def host(self):
        job = self.train(self.write_job(train__steps=20), "--listen", "127.0.0.1:0",
                         "--world-size", 2, workers=("cpu:threads=1",))
        job.wait_for_output("bimetal join")
        job.address = re.search(r"bimetal join (\S+)", job.out)[1]
        return job

    def connect(self, host):
        name, port = host.address.rsplit(":", 1)
        return socket.create_connection((name, int(port)), timeout=harness.PATIENCE_S)

    def finish(self, host):
        """The job, its strangers notwithstanding."""
        self.start("join", host.address, "--worker", "cpu:threads=1").done()
        host.done()
        self.assertEqual(self.saved_steps()[-1], 20)
        self.assert_nothing_left()

    def test_strange_bytes_do_not_disturb_the_job(self):
        host = self.host()
        visits = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(200),
                  b"\xff" * 100_000, bytes(64), b"\x42"]
        sockets = []
        for visit in visits:
            stranger = self.connect(host)
            sockets.append(stranger)
            try:
                stranger.sendall(visit)
            except (BrokenPipeError, ConnectionResetError):
                pass
        silent = [self.connect(host) for _ in range(20)]  # says nothing and stays
        self.finish(host)
        for stranger in sockets + silent:
            stranger.close()

    def test_a_caller_of_another_version_is_told_so(self):
        host = self.host()
        with self.connect(host) as caller:
            hello = PREAMBLE.pack(MAGIC, OTHER_VERSION, HELLO, STORE)
            caller.sendall(hello + bytes(HELLO_BYTES - len(hello)))
            answer = caller.recv(REJECT_BYTES, socket.MSG_WAITALL)
        magic, version, message, _ = PREAMBLE.unpack(answer[: PREAMBLE.size])
        self.assertEqual((magic, message), (MAGIC, REJECT))
        self.assertNotEqual(version, OTHER_VERSION)
        self.finish(host)

    def test_joining_a_job_of_another_version(self):
        """Or something that is not Bimetal."""
        reject = PREAMBLE.pack(MAGIC, OTHER_VERSION, REJECT, STORE) + struct.pack("<H6x", 1)
        for answer, said in ((reject, f"version {OTHER_VERSION}"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not Bimetal")):
            stranger = Stranger(self, answer)
            self.assert_one_message(self.start("join", stranger.address), harness.PROTOCOL_MISMATCH, stranger.address, said)

    def test_strange_bytes_on_the_ports_of_the_ranks(self):
        job = self.train(self.write_job())
        harness.wait_until(lambda: len(self.ranks_of(job)) == 2, "both ranks", job)
        visited = set()
        while job.process.poll() is None and not (visited and "step " in job.out):
            for port in {port for pid in (job.pid, *self.ranks_of(job)) for port in listening_ports(pid)} - visited:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    visited.add(port)
                except OSError:
                    pass
            time.sleep(0.01)
        job.end()


if __name__ == "__main__":
    harness.main()
