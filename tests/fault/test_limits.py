"""Limits of the system: processes, descriptors, /proc; and more threads than it has cores for. Each ends the job with
one message that names the limit, and not with the system's words alone."""

import os
import resource
import shutil
import unittest

import harness
from harness import FaultTest, limited

NOBODY = 65534
MOST_PROCESSES = 17  # with so many, threads included, the job runs


class Limits(FaultTest):
    def setUp(self):
        super().setUp()
        self.job_file = self.write_job(train__steps=3, checkpoint__dir="")

    def test_threads_that_the_machine_has_no_cores_for(self):
        most = 16 * len(os.sched_getaffinity(0))
        if most >= 1024:
            self.skipTest("no worker may have more in any case")
        job = self.train(self.job_file, workers=("cpu:threads=1", f"cpu:threads={most + 1}")).wait()
        self.assert_one_message(job, harness.INVALID_ARGUMENT, f"threads={most + 1}", "usable core")

    def test_descriptors(self):
        for most in (8, 11, 14):
            with self.subTest(most=most):
                job = self.train(self.job_file, **limited(resource.RLIMIT_NOFILE, most)).wait()
                self.assert_one_message(job, harness.SYSTEM, "Too many open files", "ulimit -n")
                self.assert_nothing_left()

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root, and setpriv to be somebody else")
    def test_processes(self):
        """Run as a user who has none besides: root's are not counted."""
        os.chmod(self.folder, 0o755)
        os.chmod(self.temporary, 0o777)
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        failed = 0
        for most in range(1, MOST_PROCESSES):
            with self.subTest(most=most):
                job = self.start("train", self.job_file, "--worker", "cpu:threads=1", "--worker", "cpu:threads=1",
                                 program=["prlimit", f"--nproc={most}", *as_nobody, harness.BIMETAL]).wait()
                if job.status == 0:
                    continue
                failed += 1
                # While it trains a rank takes a thread that cannot be had for one that has no room.
                self.assertIn(job.status, (harness.SYSTEM, harness.OUT_OF_MEMORY), job.err)
                self.assert_one_message(job, job.status, "ulimit -u")
        self.assertGreater(failed, 0)

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_no_proc(self):
        job = self.train(self.job_file, program=["unshare", "--mount", "sh", "-c", 'while umount -l /proc 2>&-; do :; done; exec "$0" "$@"',
                                                 harness.BIMETAL]).wait()
        self.assert_one_message(job, harness.SYSTEM, "/proc")


if __name__ == "__main__":
    harness.main()
