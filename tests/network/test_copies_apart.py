#!/usr/bin/env python3
"""Two copies of the parameters on two hosts whose cable is pulled: nothing says goodbye, and neither host can know
whether the other one still runs."""

import json
import os
import signal

import job_on_hosts
from job_on_hosts import MBIT, ONE, JobOnHosts
from harness import wait_until
from shaped_network import run


class CopiesApart(JobOnHosts):
    RATES = [400 * MBIT, 400 * MBIT]
    EPOCHS = 30

    def on(self, host, *arguments):
        """In a folder of that host's own, where its checkpoints go."""
        folder = self.folder / f"host{host}"
        folder.mkdir(exist_ok=True)
        return super().on(host, *arguments, folder=folder)

    def begin(self, folder="saved"):
        """Each host has a worker and a copy; returned once both train."""
        job_file = self.write_job(data__path=str(self.folder / "data"), parallel__mode="server", servers__count=1,
                                  servers__replicas=2, fabric__peer_timeout_s=3, checkpoint__dir=str(folder),
                                  checkpoint__every_steps=0, train__epochs=self.EPOCHS)
        first = self.serve(job_file, "--worker", ONE)
        second = self.join(1, "--server", "--worker", ONE)
        saved = self.folder / "host0" / folder
        wait_until(lambda: self.steps_in(saved) or first.process.poll() is not None, "the first epoch's checkpoint", first)
        return first, second

    @staticmethod
    def steps_in(folder):
        return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))

    def saved_on(self, host):
        return self.steps_in(self.folder / f"host{host}" / "saved")

    def pull_the_cable(self, state="down"):
        run("ip", "-n", self.network.middle, "link", "set", "port1", state)

    def assert_ended_well(self, job, host):
        job.done()
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

    def test_hosts_without_a_link_go_on_each_for_itself(self):
        first, second = self.begin()
        self.pull_the_cable()
        self.assert_ended_well(second, 1)
        self.assert_ended_well(first, 0)
        self.assertIn("server 1 leads the job from now on", second.out)
        self.assertIn("server 1 is lost", first.out)

    def test_of_hosts_without_a_link_only_one_goes_on_in_a_common_folder(self):
        common = self.folder / "common"
        halves = self.begin(common)
        self.pull_the_cable()
        well = [job.wait().status == 0 for job in halves]
        self.assertEqual(sorted(well), [False, True], "\n".join(job.err for job in halves))
        self.assertRegex(halves[well.index(False)].err, "parameter server [01] has failed")
        saves = [json.loads(path.read_text()) for path in common.glob("step-*/state.json")]
        newest = max(saves, key=lambda save: save["sequence"])
        self.assertEqual(newest["state"]["step"], 16 * self.EPOCHS)
        self.assertEqual(newest["state"]["term"], 2 if well[1] else 1)

    def test_a_host_that_was_asleep_learns_that_it_leads_no_more(self):
        first, second = self.begin()
        asleep = [first.pid, *self.ranks_of(first)]
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        self.pull_the_cable()
        saved = self.saved_on(0)
        second.wait_for_output("server 1 leads the job")
        self.pull_the_cable("up")
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
        first.wait()  # its worker may go on with the copy
        self.assertIn("parameter server 0 has failed; the job goes on with its copy", first.err)
        self.assertEqual(self.saved_on(0), saved)
        self.assert_ended_well(second, 1)


if __name__ == "__main__":
    job_on_hosts.main()
