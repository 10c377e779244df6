"""A rank is killed before all ranks have met: the others end at once, on its machine and on others, and say which it was.

cluster.join_timeout_s is longer than the test's patience: a rank that waits for the dead one in vain fails the test. On
one machine the launcher would end the others in any case, after a while: that they have done so by themselves is in
their log.
"""

import os
import pathlib
import shutil
import signal
import subprocess

import harness
from harness import TwoMachines, connected, wait_until

ONE = "cpu:threads=1"
GIVES_UP = "does not wait any longer"


def has_libtorch(pid):
    return "libtorch_cpu" in pathlib.Path(f"/proc/{pid}/maps").read_text()


class RankStart(TwoMachines):
    def setUp(self):
        super().setUp()
        self.environment["BIMETAL_DEBUG"] = "info"
        self.job_file = self.write_job(checkpoint__dir="", cluster__join_timeout_s=600, parallel__timeout_s=600)

    def rank(self, job, number):
        """A rank's process as soon as there is one: it is at its very beginning."""
        found = {}

        def there():
            found.update(harness.ranks_below(job.pid, self.processes()))
            return number in found or job.process.poll() is not None

        wait_until(there, f"rank {number}", job)
        return found[number]

    # ---- two moments -----------------------------------------------------------------------------

    def at_its_very_beginning(self, victim, other, port):
        os.kill(victim, signal.SIGKILL)

    def while_it_waits_for_another(self, victim, other, port):
        """The other one is held, so that they cannot have met when the victim is killed."""
        os.kill(other, signal.SIGSTOP)
        wait_until(lambda: connected(victim, port), "the victim at the store")
        os.kill(victim, signal.SIGKILL)
        os.kill(other, signal.SIGCONT)

    MOMENTS = (at_its_very_beginning, while_it_waits_for_another)

    # ---- what must come of it --------------------------------------------------------------------

    def assert_named(self, job, victim, pid):
        job.done(harness.PEER_LOST)
        self.assertIn(f"rank {victim} ", job.error())
        self.assertIn(f"pid {pid}", job.error())
        self.assertIn("signal 9", job.error())

    def test_ranks_alone_load_libtorch(self):
        job = self.train(self.job_file, workers=(ONE,))
        rank = self.rank(job, 0)
        wait_until(lambda: has_libtorch(rank), "libtorch in the rank", job)
        self.assertFalse(has_libtorch(job.pid))
        job.wait_for_output("epoch")
        job.end()

    def test_without_the_program_that_has_libtorch(self):
        alone = self.folder / "bimetal"
        shutil.copy(harness.BIMETAL, alone)
        done = subprocess.run([alone, "devices"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, harness.SYSTEM)
        self.assertIn(f"{self.folder}/bimetal-torch, which belongs to this program", done.stderr)

    def test_on_one_machine(self):
        for moment in self.MOMENTS:
            for victim, other in ((0, 1), (2, 0)):
                with self.subTest(moment=moment.__name__, victim=victim):
                    job = self.train(self.job_file, workers=(ONE,) * 3)
                    pids = {rank: self.rank(job, rank) for rank in (other, victim)}
                    port = int(harness.variable_of(pids[victim], "MASTER_PORT"))
                    moment(self, pids[victim], pids[other], port)
                    self.assert_named(job, victim, pids[victim])
                    for rank in {0, 1, 2} - {victim}:
                        self.assertRegex(job.err, rf"rank {rank} {GIVES_UP}.*rank {victim} .*signal 9")
                    self.assert_nothing_left()

    def test_on_two_machines(self):
        for moment in self.MOMENTS:
            for victim, other in ((0, 2), (2, 1)):  # rank 0 is the host's, the others are the guest's
                with self.subTest(moment=moment.__name__, victim=victim):
                    host = self.host(self.job_file, world_size=3)
                    guest = self.join(host, workers=(ONE, ONE))
                    at = {rank: host if rank == 0 else guest for rank in range(3)}
                    pids = {rank: self.rank(at[rank], rank) for rank in (other, victim)}
                    moment(self, pids[victim], pids[other], int(host.address.rpartition(":")[2]))
                    for job in (host, guest):
                        self.assert_named(job, victim, pids[victim])
                    self.assertRegex(at[other].err, rf"rank {other} {GIVES_UP}.*rank {victim} .*signal 9")
                    self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
