#!/usr/bin/env python3
"""A machine that joins by the door of one that came later itself, as the first machine is gone: they reach each other, though
neither launcher knows of the other's ranks."""

import os
import signal

import job_on_hosts
import harness
from exact_job import ExactJob
from harness import wait_until
from job_on_hosts import MBIT, JobOnHosts

SLOW = "cpu:threads=1,speed=0.3"
STEPS = 60


@harness.waits
class Late(JobOnHosts, ExactJob):
    RATES = [400 * MBIT] * 4

    def write_late_job(self, name):
        return self.write_exact_job(name, train__steps=STEPS, train__evaluate=False, elastic__keeper="either")

    def join_at(self, host, address):
        return self.on(host, "join", address, "--token-file", self.token, "--worker", SLOW)

    def test_the_first_to_come_by_a_latecomers_door(self):
        first = self.on(0, "train", self.write_late_job("elastic"), "--listen", self.address, "--token-file", self.token,
                        "--world-size", 2, "--worker", SLOW)
        first.wait_for_output("bimetal join")
        second = self.join_at(1, self.address)
        self.checkpoints = self.folder / "elastic"
        self.wait_for_checkpoint(first)
        late = self.join_at(2, self.address)
        late.wait_for_output("training\n")
        for job in (first, second):
            for pid in (job.pid, *self.ranks_of(job)):
                os.kill(pid, signal.SIGKILL)
            job.process.wait()
        wait_until(lambda: "others join by: bimetal join" in late.out, "the one that leads now", late)
        later = self.join_at(3, late.out.split("others join by: bimetal join ")[1].split()[0])
        late.wait_for_output("2 workers go on")
        for job in (late, later):
            job.done()
        self.train(self.write_late_job("alone"), workers=("cpu:threads=1",)).done()
        self.assert_same_end("elastic", STEPS, scaled=True)


if __name__ == "__main__":
    job_on_hosts.main()
