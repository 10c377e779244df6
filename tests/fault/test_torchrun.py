"""Ranks started by torchrun, whose own store holds the port."""

import json
import os
import shutil
import unittest

import harness
from harness import BIMETAL, FaultTest

TORCHRUN = os.environ.get("TORCHRUN") or shutil.which("torchrun")


@unittest.skipUnless(TORCHRUN and os.path.exists(TORCHRUN), "torchrun is not installed")
class Torchrun(FaultTest):
    def torchrun(self, job_file, *arguments):
        workers = ["--worker", "cpu:threads=1", "--worker", "cpu:threads=1,speed=0.5"]
        # Its own logs would otherwise stay among the temporary files.
        options = ["--no-python", "--standalone", "--nproc-per-node", 2, "--log-dir",
                   self.folder / "torchrun"]
        return self.start(*options, BIMETAL, "train", job_file, *workers, *arguments,
                          program=[TORCHRUN])

    def test_two_ranks(self):
        report = self.folder / "report.json"
        self.torchrun(self.write_job(train__steps=40), "--report", report).done()
        figures = json.loads(report.read_text())
        self.assertEqual(figures["world_size"], 2)
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), 40 * 64)

    def test_a_failure_is_told_and_seen(self):
        job = self.torchrun(self.write_job(train__learning_rate=1e30)).wait()
        self.assertNotEqual(job.status, 0)
        self.assertIn("bimetal: error: step", job.err)
        self.assertIn(f"exitcode  : {harness.NOT_FINITE}", job.err)

    def test_ctrl_c_saves_once(self):
        job = self.torchrun(self.write_job(checkpoint__every_steps=0))
        job.wait_for_output("step ")
        job.interrupt()
        job.wait()
        self.assertNotEqual(job.status, 0)
        self.assert_saved_where_it_stopped(job)

    def test_its_ranks_end_with_it_however_it_ends(self):
        job = self.torchrun(self.write_job())
        self.wait_for_checkpoint(job)
        job.process.kill()
        harness.wait_until(lambda: not self.processes(), "the end of the ranks", job)
        self.assertIn("has ended: so does this rank", job.err)
        self.assert_no_half_checkpoint()


if __name__ == "__main__":
    harness.main()
