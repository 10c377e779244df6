#!/usr/bin/env python3
"""Two stages on hosts of their own are cut where little is sent, if the link between them is slow."""

import json

import job_on_hosts
from job_on_hosts import MBIT, ONE, JobOnHosts

SLOW = "cpu:threads=1,speed=0.25"


class CutLinks(JobOnHosts):
    RATES = [10 * MBIT] * 2

    def begins(self, *jobs):
        for job in jobs:
            job.done()
        return json.loads((self.folder / "run.json").read_text())["mesh"]["begins"]

    # Among the CNN's units the first takes least time and gives most output, the second takes most time, the third
    # gives least output.
    def test_a_slow_link_is_crossed_where_little_is_sent(self):
        job_file = self.write_job(model__name="cnn", mesh__stages=2, mesh__micro_batches=4, train__steps=1,
                                  fabric__transport="tcp")
        report = ("--report", self.folder / "run.json")
        self.assertEqual(self.begins(self.train(job_file, *report, workers=(SLOW, ONE))), [0, 1])
        host = self.on(0, "train", job_file, "--listen", self.address, "--world-size", 2, "--token-file", self.token,
                       "--worker", SLOW, *report)
        host.wait_for_output("bimetal join")
        self.assertEqual(self.begins(host, self.join(1, "--worker", ONE)), [0, 3])


if __name__ == "__main__":
    job_on_hosts.main()
