"""Ctrl-C once, twice, SIGTERM, and a launcher that is killed outright."""

import os
import signal
import time

import harness
from harness import FaultTest, waits


class Interrupt(FaultTest):
    def test_ctrl_c_saves_and_ends(self):
        job_file = self.write_job(checkpoint__every_steps=0)
        job = self.train(job_file)
        job.wait_for_output("step ")
        job.end()
        self.assertNotIn("error", job.err)
        self.assert_saved_where_it_stopped(job)
        self.assertIn("--resume", job.out)
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()
        self.assert_can_resume(job_file)

    def test_sigterm_is_the_same(self):
        job = self.train(self.write_job(checkpoint__every_steps=0))
        job.wait_for_output("step ")
        os.kill(job.pid, signal.SIGTERM)
        job.done(harness.INTERRUPTED)
        self.assert_saved_where_it_stopped(job)

    @waits
    def test_a_second_ctrl_c_ends_at_once(self):
        job = self.train(self.write_job())
        self.wait_for_checkpoint(job)
        # A rank that cannot answer: the orderly end does not come.
        os.kill(self.ranks_of(job)[1], signal.SIGSTOP)
        job.interrupt()
        job.wait_for_output("Ctrl-C again")
        job.end()
        self.assertIn("ended at once", job.err)

    def test_a_killed_launcher_leaves_no_orphans(self):
        job_file = self.write_job()
        job = self.train(job_file)
        self.wait_for_checkpoint(job)
        ranks = self.ranks_of(job)
        self.assertEqual(len(ranks), 2)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        harness.wait_until(lambda: not self.processes(), "the ranks' end", job)
        self.assert_nothing_left()
        self.assert_can_resume(job_file)

    @waits
    def test_a_stopped_and_killed_launcher_leaves_no_orphans(self):
        job = self.train(self.write_job())
        self.wait_for_checkpoint(job)
        os.kill(job.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        harness.wait_until(lambda: not self.processes(), "the ranks' end", job)


if __name__ == "__main__":
    harness.main()
