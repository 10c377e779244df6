#!/usr/bin/env python3
"""A host whose name server never answers: a process that waits for a name ends in time, and at once on Ctrl-C."""

import pathlib
import shutil
import signal
import time

import job_on_hosts
import harness
from namespaces import Host


@harness.waits
class SilentResolver(harness.TwoMachines):
    def setUp(self):
        super().setUp()
        self.host_ = Host()
        self.addCleanup(self.host_.remove)
        # Queries leave by a cable at whose other end nobody listens.
        self.host_.ip("link", "add", "silent", "type", "veth", "peer", "name", "far")
        self.host_.ip("link", "set", "far", "up")
        self.host_.address("silent", "192.0.2.2/24")
        self.host_.ip("neigh", "add", "192.0.2.1", "lladdr", "02:00:00:00:00:01", "dev", "silent")
        folder = pathlib.Path("/etc/netns") / self.host_.name  # ip netns exec shows its files in /etc
        folder.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, folder)
        (folder / "resolv.conf").write_text("nameserver 192.0.2.1\noptions timeout:30 attempts:3\n")

    def join(self, *arguments):
        return self.start("join", "nowhere.example:29570", "--token-file", self.token, *arguments,
                          program=[*self.host_.command(), harness.BIMETAL])

    def test_a_name_that_is_not_resolved_in_time(self):
        begun = time.monotonic()
        job = self.join("--join-timeout", 3).wait()
        self.assertLess(time.monotonic() - begun, 30, "waited for the resolver and not for the deadline")
        self.assert_one_message(job, harness.TIMEOUT, "nowhere.example")

    def test_ctrl_c(self):
        job = self.join()
        time.sleep(2)
        self.assertIsNone(job.process.poll(), job.err)
        begun = time.monotonic()
        job.interrupt()
        self.assertEqual(job.wait().status, -signal.SIGINT, job.err)  # 130 to a shell
        self.assertLess(time.monotonic() - begun, 20, "waited for the resolver")


if __name__ == "__main__":
    job_on_hosts.main()
