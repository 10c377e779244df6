#!/usr/bin/env python3
"""A job on two hosts whose cable is pulled, or carries one way only: both prompts come back soon after the ranks have
found it out, since nobody waits for word from a machine that cannot give it."""

import time

import job_on_hosts
import harness
from job_on_hosts import MBIT, JobOnHosts
from harness import wait_until
from shaped_network import run

# Once the ranks of a host have ended. The waits that a launcher has for others add up to 8 s and more.
PROMPT_S = 5 * harness.PATIENCE


@harness.waits
class Cut(JobOnHosts):
    RATES = [400 * MBIT, 400 * MBIT]

    def begin(self, **settings):
        return super().begin("--no-elastic", parallel__timeout_s=5, fabric__peer_timeout_s=2, **settings)

    def pull_the_cable(self):
        run("ip", "-n", self.network.middle, "link", "set", "port1", "down")

    def lose_what_host_1_sends(self):
        """To an address of the link that nobody has."""
        run("ip", "-n", self.network.namespaces[1], "neigh", "replace", self.network.address(0), "lladdr",
            "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")

    def assert_prompts_come_back(self, jobs):
        """Each soon after its ranks have ended, with what they saw."""
        without_ranks, done = {}, {}

        def look():
            now = time.monotonic()
            for job in jobs:
                if job not in without_ranks and not self.ranks_of(job):
                    without_ranks[job] = now
                if job not in done and job.process.poll() is not None:
                    done[job] = now
            return len(done) == len(jobs)

        wait_until(look, "the prompts", jobs[0])
        for number, job in enumerate(jobs):
            job.wait()
            print(f"host {number}: prompt {done[job] - without_ranks[job]:.1f} s after its ranks: {job.error()}")
            self.assert_one_message(job, harness.PEER_LOST, f"rank {1 - number} ")
            self.assertLess(done[job] - without_ranks[job], PROMPT_S, job.err)
        self.assert_nothing_left()

    def test_a_pulled_cable(self):
        jobs = self.begin()
        self.pull_the_cable()
        self.assert_prompts_come_back(jobs)

    def test_one_way_is_lost(self):
        jobs = self.begin()
        self.lose_what_host_1_sends()
        self.assert_prompts_come_back(jobs)

    def test_a_pulled_cable_between_stages(self):
        jobs = self.begin(mesh__stages=2, mesh__micro_batches=4)
        self.pull_the_cable()
        self.assert_prompts_come_back(jobs)
        for job in jobs:
            for stage in range(2):
                self.assertIn(f"stage {stage} of 2", job.error())

    def test_a_cause_on_the_other_host_is_still_waited_for(self):
        first, second = self.begin()
        run("ip", "netns", "exec", self.network.namespaces[1], "kill", "-KILL", str(self.ranks_of(second)[0]))
        for job in (first, second):
            self.assert_one_message(job, harness.PEER_LOST, "rank 1 ", "killed by signal 9")


if __name__ == "__main__":
    job_on_hosts.main()
