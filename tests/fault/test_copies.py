"""Jobs that keep each shard twice (zero.copies = 2): a rank is lost in the middle of a step, those who are left save that
step, and others go on from it to what one worker would have learnt."""

import contextlib
import os
import random
import re
import signal
import time

import harness
from exact_job import ExactJob
from harness import TwoMachines

FIRST = 5  # the step of the first checkpoint
AFTER = 5  # steps by those who go on
ONE = "cpu:threads=1"


class CopiedJob(ExactJob):
    def write_copied_job(self, **settings):
        """It does not end by itself."""
        return self.write_exact_job("shards", **{
            "train__steps": 1_000_000, "checkpoint__every_steps": FIRST, "zero__copies": 2, "train__evaluate": False, **settings})

    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder / "shards"

    def start_job(self, ranks, **settings):
        job = self.train(self.write_copied_job(**settings), workers=(ONE,) * ranks)
        self.wait_for_checkpoint(job)
        time.sleep(random.uniform(0, 0.3))  # anywhere in a step
        return job

    def saved_step(self, job, rank):
        """The step that was saved in the place of `rank`."""
        found = re.search(rf"what rank {rank} had has been saved from its copy, at step (\d+)\n.*--resume (\S+)", job.error())
        self.assertTrue(found, f"{job.out}\n{job.err}")
        step = int(found[1])
        self.assertGreaterEqual(step, FIRST)
        self.assertEqual(self.saved_steps()[-1], step)
        self.assertTrue(found[2].endswith(f"shards/step-{step:08}"))
        self.assert_no_half_checkpoint()
        return step

    def assert_goes_on(self, step, ranks, **settings):
        """It comes to what a training has learnt that nothing has disturbed."""
        end = step + AFTER
        self.run_to(self.write_copied_job(**settings), end, "--resume", self.checkpoints, ranks=ranks)
        self.run_to(self.write_exact_job("alone", train__evaluate=False), end, ranks=1)
        self.assert_same_end("shards", end)
        self.assert_nothing_left()


class Copies(CopiedJob):
    def lose(self, level, shards, rank, **settings):
        ranks = len(shards)
        job = self.start_job(ranks, zero__level=level, zero__shards=shards, **settings)
        pid = self.kill(job, rank)
        self.assert_one_message(job, harness.PEER_LOST, f"rank {rank}", f"pid {pid}", "signal 9")
        step = self.saved_step(job, rank)
        self.assert_nothing_left()
        self.assert_goes_on(step, ranks - 1, zero__level=level, zero__shards="equal", **settings)

    def test_a_rank_that_is_stuck(self):
        job = self.start_job(3, zero__level=1, zero__shards=[1, 2, 1], parallel__timeout_s=3)
        os.kill(self.ranks_of(job)[1], signal.SIGSTOP)
        job.wait()
        self.assertNotEqual(job.status, 0)
        step = self.saved_step(job, 1)
        self.assert_nothing_left()
        self.assert_goes_on(step, 2, zero__level=1, zero__shards="equal")

    def test_two_at_once(self):
        job = self.start_job(3, zero__level=1, zero__shards=[1, 1, 1])
        self.wait_for_a_told_checkpoint(job)
        for pid in self.ranks_of(job)[:2]:
            os.kill(pid, signal.SIGKILL)
        self.assert_one_message(job, harness.PEER_LOST, "no later step could be saved", "ranks 0 and 1 are lost", "--resume")
        self.assert_nothing_left()
        self.assert_no_half_checkpoint()
        self.assert_goes_on(self.saved_steps()[-1], 1, zero__level=1, zero__shards="equal")

    def test_one_is_lost_and_another_is_stopped_while_it_saves(self):
        job = self.start_job(3, zero__level=1, zero__shards=[1, 1, 1], parallel__timeout_s=3)
        pids = self.ranks_of(job)
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.02)  # the loss is seen at once, and to meet takes longer
        with contextlib.suppress(ProcessLookupError):  # it has saved already, and has ended
            os.kill(pids[1], signal.SIGSTOP)
        self.assert_one_message(job, harness.PEER_LOST, "rank 0", "signal 9")
        self.assert_nothing_left()
        self.assert_no_half_checkpoint()

    def test_one_rank_has_nobody_for_its_copy(self):
        said = self.run_to(self.write_copied_job(zero__level=1, zero__shards=[1, 0]), 5, ranks=2)
        self.assertIn("no other to keep its copy", said.out)


for _level, _shards, _rank in ((3, [1, 2], 0), (2, [1, 1, 1], 1), (1, [5, 2, 0], 2)):
    setattr(Copies, f"test_level_{_level}_loses_rank_{_rank}_of_{len(_shards)}",
            lambda self, case=(_level, _shards, _rank): self.lose(*case))


class CopiesOnTwoMachines(CopiedJob, TwoMachines):
    def begin(self):
        """Rank 0 on the one, 1 and 2 on the other; the folder is common to both."""
        host = self.host(self.write_copied_job(zero__level=2, zero__shards=[1, 2, 1]), "--no-elastic", world_size=3, workers=(ONE,))
        guest = self.join(host, workers=(ONE, ONE))
        self.wait_for_checkpoint(host)
        return host, guest

    def lose(self, machine):
        jobs = self.begin()
        self.kill(jobs[machine], 0)
        for job in jobs:
            self.assert_one_message(job, harness.PEER_LOST, "signal 9")
        self.assert_goes_on(self.saved_step(jobs[1 - machine], machine), 2, zero__level=2, zero__shards="equal")

    def test_a_rank_of_the_other_machine(self):
        self.lose(1)

    def test_the_only_rank_of_the_first_machine(self):
        self.lose(0)


if __name__ == "__main__":
    harness.main()
