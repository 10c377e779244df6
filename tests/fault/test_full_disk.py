"""No room for a checkpoint: the job says which file and why, and older checkpoints stay whole."""

import os
import resource
import subprocess
import unittest

import harness
from harness import FaultTest

MODEL_BYTES = 4 * (784 * 256 + 256 * 256 + 256 * 10)  # the mlp's weights


class FullDisk(FaultTest):
    def check(self, job, job_file):
        job.wait()
        self.assert_one_message(job, harness.SYSTEM, str(self.checkpoints))
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()
        self.assertTrue(self.saved_steps(), "the checkpoint from before is gone")
        self.assert_can_resume(job_file)

    def first_checkpoint(self, job_file):
        job = self.train(job_file, "--set", "train.steps=5").wait()
        self.assertEqual(job.status, 0, job.err)

    def test_a_limit_on_file_sizes(self):
        job_file = self.write_job()
        self.first_checkpoint(job_file)
        limit = MODEL_BYTES // 2

        def limit_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        job = self.train(job_file, "--resume", self.checkpoints, preexec_fn=limit_files)
        self.check(job, job_file)

    @unittest.skipUnless(os.geteuid() == 0, "only root can mount a small disk")
    def test_a_full_disk(self):
        self.checkpoints.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={8 * MODEL_BYTES}", "tmpfs", self.checkpoints],
            capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("mounting is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.checkpoints], check=False)
        job_file = self.write_job()
        self.first_checkpoint(job_file)
        filler = self.checkpoints / "step-filler"
        with open(filler, "wb") as file:
            room = os.statvfs(self.checkpoints)
            file.write(bytes(max(0, room.f_bavail * room.f_frsize - MODEL_BYTES // 2)))
        job = self.train(job_file, "--resume", self.checkpoints).wait()
        self.assert_one_message(job, harness.SYSTEM, str(self.checkpoints))
        self.assert_nothing_left()
        filler.unlink()
        self.assert_no_half_checkpoint()
        self.assert_can_resume(job_file)


if __name__ == "__main__":
    harness.main()
