"""Jobs whose machines are hosts of their own (bench/shaped_network.py)."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "fault"), str(ROOT / "bench")]

import harness  # noqa: E402
from namespaces import why_not  # noqa: E402
from shaped_network import Network  # noqa: E402

MBIT = 1_000_000
ONE = "cpu:threads=1"


class JobOnHosts(harness.TwoMachines):
    RATES = []  # of the hosts' links, bits per second

    def setUp(self):
        super().setUp()
        self.network = Network(self.RATES).__enter__()
        self.addCleanup(self.network.__exit__)
        self.address = f"{self.network.address(0)}:29570"

    def on(self, host, *arguments, **options):
        return self.start(*arguments, program=self.network.command(host, [harness.BIMETAL]), **options)

    def serve(self, job_file, *arguments):
        """On host 0, with the first of two servers."""
        job = self.on(0, "train", job_file, "--listen", self.address, "--token-file", self.token, "--servers-here", 1,
                      *arguments)
        job.wait_for_output("workers may come and go")
        return job

    def begin(self, *arguments, **settings):
        """A rank on each of two hosts; returned once they train."""
        first = self.on(0, "train", self.write_job(**settings), "--listen", self.address, "--token-file", self.token, "--world-size", 2,
                        "--worker", ONE, *arguments)
        first.wait_for_output("bimetal join")
        second = self.join(1, "--worker", ONE)
        self.wait_for_checkpoint(first)
        return first, second

    def join(self, host, *arguments):
        return self.on(host, "join", self.address, "--token-file", self.token, *arguments)


def main():
    missing = why_not()
    if missing or os.geteuid() != 0:
        print(f"skipped: {missing or 'needs root'}")
        sys.exit(77)
    harness.main()
