#!/usr/bin/env python3
"""Two copies of the parameters on two hosts whose cable is pulled: nothing says goodbye, and neither host can know
whether the other one still runs."""

import os
import pathlib
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "fault"), str(ROOT / "bench")]

import harness  # noqa: E402
from harness import TwoMachines, wait_until  # noqa: E402
from namespaces import why_not  # noqa: E402
from shaped_network import Network, run  # noqa: E402

MBIT = 1_000_000
ONE = "cpu:threads=1"


class CopiesApart(TwoMachines):
    EPOCHS = 60

    def setUp(self):
        super().setUp()
        self.network = Network([400 * MBIT, 400 * MBIT]).__enter__()
        self.addCleanup(self.network.__exit__)
        self.address = f"{self.network.address(0)}:29570"

    def on(self, host, *arguments):
        """In a folder of that host's own, where its checkpoints go."""
        folder = self.folder / f"host{host}"
        folder.mkdir(exist_ok=True)
        return self.start(*arguments, program=self.network.command(host, [harness.BIMETAL]), folder=folder)

    def begin(self):
        """Each host has a worker and a copy; returned once both train."""
        job_file = self.write_job(data__path=str(self.folder / "data"), parallel__mode="server", parallel__servers=1,
                                  parallel__replicas=2, parallel__timeout_s=3, checkpoint__dir="saved",
                                  checkpoint__every_steps=0, train__epochs=self.EPOCHS)
        first = self.on(0, "train", job_file, "--listen", self.address, "--token-file", self.token, "--servers-here", 1,
                        "--worker", ONE)
        first.wait_for_output("workers may come and go")
        second = self.on(1, "join", self.address, "--token-file", self.token, "--server", "--worker", ONE)
        wait_until(lambda: self.saved_on(0) or first.process.poll() is not None, "the first epoch's checkpoint", first)
        return first, second

    def saved_on(self, host):
        return sorted(int(path.name.split("-")[1]) for path in (self.folder / f"host{host}").glob("saved/step-*"))

    def pull_the_cable(self):
        run("ip", "-n", self.network.middle, "link", "set", "port1", "down")

    def assert_ended_well(self, job, host):
        self.assertEqual(job.wait().status, 0, f"{job.out}\n{job.err}")
        self.assertEqual(self.saved_on(host)[-1], 16 * self.EPOCHS)
        self.assertIn("trained ", job.out)

    def test_the_copy_of_a_host_without_power_goes_on(self):
        first, second = self.begin()
        self.pull_the_cable()
        for pid in [first.pid, *self.ranks_of(first)]:
            os.kill(pid, signal.SIGKILL)
        self.assert_ended_well(second, 1)
        self.assertIn("server 1 leads the job from now on", second.out)
        first.wait()
        self.assert_nothing_left()

    def test_hosts_without_a_link_go_on_each_for_itself(self):
        first, second = self.begin()
        self.pull_the_cable()
        self.assert_ended_well(second, 1)
        self.assert_ended_well(first, 0)
        self.assertIn("server 1 leads the job from now on", second.out)
        self.assertIn("server 1 is lost", first.out)
        self.assert_nothing_left()


if __name__ == "__main__":
    missing = why_not()
    if missing or os.geteuid() != 0:
        print(f"skipped: {missing or 'needs root'}")
        sys.exit(77)
    harness.main()
