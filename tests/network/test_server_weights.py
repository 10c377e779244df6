#!/usr/bin/env python3
"""How much each parameter server keeps follows the bandwidth of its link: hosts of their own, links of real rates."""

import json
import os
import pathlib
import re
import signal
import subprocess

import job_on_hosts
from job_on_hosts import MBIT, ONE, JobOnHosts
import harness
from harness import wait_until

STEPS = 60


class ServerWeights(JobOnHosts):
    # Server 0, server 1 on a slow link, workers.
    RATES = [200 * MBIT, 20 * MBIT, 400 * MBIT, 400 * MBIT]

    def serve(self, job_file, *arguments):
        return super().serve(job_file, "--worker", "none", "--report", self.folder / "run.json", *arguments)

    def job_file(self, servers, **settings):
        path = self.write_job(parallel__mode="server", servers__count=2, train__dtype="float64", train__epochs=1000,
                              checkpoint__every_steps=0, fabric__transport="tcp", **settings)
        path.write_text(path.read_text().replace("count = 2", f"count = {servers}"))
        return path

    def sent_by(self, host):
        """Bytes that the host's link has carried away."""
        command = self.network.command(host, ["cat", "/sys/class/net/eth0/statistics/tx_bytes"])
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def report(self, *jobs):
        for job in jobs:
            job.done()
        return json.loads((self.folder / "run.json").read_text())

    def weights_told(self, job):
        found = re.search(r"carry (\d+), (\d+) Mbit/s, so they keep parts of the parameters as (\S+) : (\S+)", job.out)
        self.assertTrue(found, f"{job.out}\n{job.err}")
        return [float(weight) for weight in found.groups()[2:]]

    def test_a_server_on_a_slow_link_keeps_less(self):
        host = self.serve(self.job_file(2), "--set", f"train.steps={STEPS}")
        jobs = [self.join(1, "--server"), self.join(2, "--worker", ONE)]
        report = self.report(host, *jobs)
        weights = self.weights_told(host)
        self.assertEqual(weights[0], 1)
        self.assertLess(weights[1], 0.25)
        self.assertLess(self.sent_by(1), self.sent_by(0) / 2)
        alone = self.on(2, "train", self.write_job(checkpoint__dir="", train__dtype="float64", train__epochs=1000,
                                                   train__steps=STEPS), "--worker", ONE, "--report",
                        self.folder / "run.json")
        self.assertAlmostEqual(report["train_loss"], self.report(alone)["train_loss"], delta=1e-10)
        # Its checkpoint has whole tensors: other weights, given this time, go on from it.
        host = self.serve(self.job_file([1, 3]), "--set", f"train.steps={STEPS + 5}", "--resume", self.checkpoints)
        jobs = [self.join(1, "--server", "--resume", self.checkpoints), self.join(2, "--worker", ONE)]
        self.report(host, *jobs)
        self.assertNotIn("Mbit/s", host.out)
        self.assertEqual(self.saved_steps()[-1], STEPS + 5)

    def test_a_worker_that_dies_while_it_measures_is_replaced(self):
        host = self.serve(self.job_file(2), "--set", "train.steps=5")
        server = self.join(1, "--server")
        first = self.join(2, "--worker", ONE)
        wait_until(lambda: self.measures(first), "a worker that measures", first)
        os.kill(self.ranks_of(first)[0], signal.SIGKILL)
        self.assertNotEqual(first.wait().status, 0)
        second = self.join(3, "--worker", ONE)
        report = self.report(host, server, second)
        self.assertLess(self.weights_told(host)[1], 0.25)
        self.assertEqual(report["steps"], 5)

    def measures(self, job):
        """Whether its worker is connected with the host of server 1: before it has joined the servers."""
        for pid in self.ranks_of(job):
            address = bytes(map(int, self.network.address(1).split(".")))[::-1].hex().upper()
            for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
                remote, state = line.split()[2:4]
                if remote.startswith(address) and state == "01":
                    return True
        return False

    def test_a_server_that_dies_meanwhile_ends_the_job(self):
        host = self.serve(self.job_file(2, cluster__join_timeout_s=600))
        server = self.join(1, "--server")
        host.wait_for_output("measuring the links")
        os.kill(self.ranks_of(server)[0], signal.SIGKILL)
        for job in (server, host):
            job.done(harness.PEER_LOST)
            self.assertIn("server 1", job.err)


if __name__ == "__main__":
    job_on_hosts.main()
