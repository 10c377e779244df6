#!/usr/bin/env python3
"""Two hosts that have no IPv4 address: store, mesh, parameter servers, data and predictions find each other."""

import json
import re

import job_on_hosts
import harness
from namespaces import Host, cable


class IPv6Only(harness.TwoMachines):
    def setUp(self):
        super().setUp()
        self.hosts = [Host(), Host()]
        for host in self.hosts:
            self.addCleanup(host.remove)
        cable(self.hosts[0], "eth0", self.hosts[1], "eth0")
        for number, host in enumerate(self.hosts):
            host.address("eth0", f"fd00:199::{number + 1}/64")

    def on(self, host, *arguments, **options):
        return self.start(*arguments, program=[*self.hosts[host].command(), harness.BIMETAL], **options)

    def listen(self, job_file, *arguments):
        job = self.on(0, "train", job_file, "--listen", "[fd00:199::1]:29570", "--token-file", self.token, "--worker",
                      "cpu:threads=1", "--report", self.folder / "run.json", *arguments)
        job.wait_for_output("bimetal join")
        return job

    def join(self, job, *arguments):
        address = re.search(r"bimetal join (\S+)", job.out)[1]
        self.assertIn("fd00:199::1", address)
        return self.on(1, "join", address, "--token-file", self.token, "--worker", "cpu:threads=1", *arguments)

    def report_of(self, *jobs):
        for job in jobs:
            job.done()
        self.assert_nothing_left()
        return json.loads((self.folder / "run.json").read_text())

    def test_all_reduce(self):
        host = self.listen(self.write_job(train__steps=10), "--world-size", 2)
        self.assertEqual(self.report_of(host, self.join(host))["steps"], 10)

    def test_data_are_sent(self):
        job_file = self.write_job(train__steps=10, data__path="data")
        host = self.listen(job_file, "--world-size", 2)
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        address = re.search(r"bimetal join (\S+)", host.out)[1]
        joined = self.on(1, "join", address, "--token-file", self.token, "--worker", "cpu:threads=1", folder=elsewhere,
                         environment={"BIMETAL_CACHE": str(self.folder / "their cache"), "BIMETAL_ISLAND": "elsewhere"})
        self.assertEqual(self.report_of(host, joined)["steps"], 10)
        self.assertTrue(list((self.folder / "their cache" / "data").iterdir()))

    def test_parameter_servers(self):
        host = self.listen(self.write_job(parallel__mode="server", servers__count=2, train__steps=20), "--servers-here", 1)
        report = self.report_of(host, self.join(host, "--server"))
        self.assertEqual(report["steps"], 20)

    def test_predictions(self):
        job_file = self.write_job(train__epochs=1)
        self.train(job_file, workers=("cpu:threads=1",)).done()
        server = self.on(0, "serve", self.checkpoints, "--listen", "[fd00:199::1]:0", "--token-file", self.token, "--worker",
                         "cpu:threads=1")
        server.wait_for_output("serving")
        address = re.search(r" at (\S+);", server.out)[1]
        asked = self.on(1, "predict", address, self.folder / "data" / "t10k-images-idx3-ubyte", "--token-file", self.token,
                        "--json").done()
        self.assertEqual(json.loads(asked.out)["images"], 128)
        server.end()


if __name__ == "__main__":
    job_on_hosts.main()
