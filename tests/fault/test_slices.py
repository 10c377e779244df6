"""Checkpoints of which each worker writes its part: killed while they are written, without room on one worker, damaged, and
read by other commands."""

import os
import random
import shutil
import signal
import time

import harness
from harness import FaultTest

MODEL_BYTES = 4 * (784 * 256 + 256 * 256 + 256 * 10)  # the mlp's weights


class Slices(FaultTest):
    def sliced_job(self, name="job.toml", **settings):
        return self.write_job(name, **{"train__optimizer": "adamw", "zero__level": 2, "zero__shards": [2, 1],
                                 "checkpoint__every_steps": 1, "checkpoint__keep": 2, **settings})

    def inspect(self, path):
        return self.start("checkpoint", "inspect", path).wait()

    def test_killed_at_any_moment(self):
        job_file = self.sliced_job()
        stages = self.sliced_job("stages.toml", zero__level=0, zero__shards="equal", mesh__stages=2, mesh__cuts=[1])
        self.train(job_file, "--set", "train.steps=1").wait()
        for everybody, killed in ((False, job_file), (True, stages), (False, stages), (True, job_file)):
            before = self.saved_steps()[-1]
            job = self.train(killed, "--resume", self.checkpoints)
            harness.wait_until(lambda before=before, job=job: self.saved_steps()[-1] > before
                               or job.process.poll() is not None, "a checkpoint", job)
            time.sleep(random.uniform(0, 0.3))
            for pid in [job.pid, *self.ranks_of(job)] if everybody else self.ranks_of(job)[1:]:
                os.kill(pid, signal.SIGKILL)
            job.wait()
            harness.wait_until(lambda: not self.processes(), "the end of all ranks")
            seen = self.inspect(self.checkpoints)
            self.assertEqual(seen.status, 0, f"{seen.out}\n{seen.err}")
            self.assertIn("in slices of 2 ranks", seen.out)
            self.assertGreater(self.saved_steps()[-1], before)
        self.assert_can_resume(job_file)

    @harness.waits
    def test_stopped_while_saving_is_named(self):
        for stopped, settings in ((1, {"mesh__stages": 2, "mesh__cuts": [1], "zero__level": 0}), (0, {"zero__level": 2}),
                                  (0, {"zero__level": 0})):
            with self.subTest(stopped=stopped, **settings):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                job = self.train(self.sliced_job(**{"zero__shards": "equal", "parallel__timeout_s": 3, **settings}))
                self.wait_for_checkpoint(job)
                # It saves after every step, which takes longer than the step: most stops hit it there.
                harness.wait_until(self.unfinished_checkpoints, "a checkpoint in the making", job)
                os.kill(self.ranks_of(job)[stopped], signal.SIGSTOP)
                job.done(harness.TIMEOUT)
                self.assertIn(f"rank {stopped}", job.error())
                self.assert_nothing_left()

    @harness.waits
    def test_stopped_while_loading_is_named(self):
        for stopped, settings in ((1, {"mesh__stages": 2, "mesh__cuts": [1], "zero__level": 0}), (0, {"zero__level": 3}),
                                  (0, {"zero__level": 0})):
            with self.subTest(stopped=stopped, **settings):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                job_file = self.sliced_job(**{"zero__shards": "equal", "parallel__timeout_s": 3, "model__hidden": 1500, **settings})
                self.train(job_file, "--set", "train.steps=1").done()
                job = self.train(job_file, "--resume", self.checkpoints)
                harness.wait_until(lambda job=job: len(self.ranks_of(job)) == 2, "both ranks", job)
                self.stop_while_one_reads(self.ranks_of(job)[0], self.ranks_of(job)[stopped])
                job.done(harness.TIMEOUT)
                self.assertIn(f"rank {stopped}", job.error())
                self.assert_nothing_left()

    def unfinished_checkpoints(self):
        return [path for path in self.checkpoints.glob(".step-*")]

    def test_a_full_disk_on_one_worker(self):
        self.small_disk(self.checkpoints, 10 * MODEL_BYTES)
        job_file = self.sliced_job(zero__shards=[0, 1])  # rank 0 has nothing to write
        self.train(job_file, "--set", "train.steps=1").done()
        filler = self.checkpoints / "filler"
        room = os.statvfs(self.checkpoints)
        filler.write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - MODEL_BYTES)))
        job = self.train(job_file, "--resume", self.checkpoints).wait()
        self.assert_one_message(job, harness.SYSTEM, "step-00000002: rank 1: cannot write", "00001-of-00002", "No space")
        filler.unlink()
        self.assert_no_half_checkpoint()
        self.assertEqual(self.saved_steps(), [1])
        self.assert_can_resume(job_file)

    def test_a_folder_that_goes_away_while_saving_is_named(self):
        for shares, whole in (([2, 1], False), ([0, 1], True)):
            with self.subTest(shares=shares, whole=whole):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                job = self.train(self.sliced_job(zero__shards=shares))
                self.wait_for_checkpoint(job)
                other = self.ranks_of(job)[1]
                made = self.stop_before_files(job, other)
                (self.checkpoints if whole else made).rename(self.folder / f"gone-{whole}")
                os.kill(other, signal.SIGCONT)
                self.assert_one_message(job, harness.SYSTEM, f"cannot save the checkpoint {self.checkpoints}/step-",
                                        f"rank 0: cannot write {made}/", "No such file or directory")
                self.assertEqual("--resume" in job.error(), not whole, job.error())
                self.assert_nothing_left()

    def stop_before_files(self, job, rank):
        """Stops the rank where rank 0 has made a folder and waits for it, before either has made files."""
        while job.process.poll() is None:
            os.kill(rank, signal.SIGSTOP)
            for made in self.unfinished_checkpoints():
                time.sleep(0.05)
                if made.exists() and not any(made.iterdir()):
                    return made
            os.kill(rank, signal.SIGCONT)
            time.sleep(random.uniform(0, 0.002))
        raise AssertionError(f"the job ended early:\n{job.out}\n{job.err}")

    def test_damage_is_named_and_others_read_slices(self):
        job_file = self.sliced_job(zero__level=3)
        self.train(job_file, "--set", "train.steps=2").done()
        newest, older = (self.checkpoints / f"step-0000000{step}" for step in (2, 1))
        self.start("checkpoint", "consolidate", newest, "--out", self.folder / "whole").done()
        self.start("export", self.checkpoints, "--out", self.folder / "out").done()
        self.assertEqual((self.folder / "out" / "model.safetensors").read_bytes(),
                         (self.folder / "whole" / "model.safetensors").read_bytes())
        said = [self.start("evaluate", job_file, "--checkpoint", path).wait() for path in (newest, self.folder / "whole")]
        self.assertEqual([job.status for job in said], [0, 0])
        self.assertEqual(*(job.out.splitlines()[-1].split()[1:] for job in said))
        servers = self.write_job("servers.toml", parallel__mode="server", train__optimizer="adamw", train__steps=4,
                                 checkpoint__dir=str(self.folder / "servers"))
        job = self.train(servers, "--resume", newest).done()
        self.assertTrue((self.folder / "servers" / "step-00000004" / "model.safetensors").is_file())
        slice_ = newest / "model-00001-of-00002.safetensors"
        damaged = bytearray(slice_.read_bytes())
        damaged[-1] ^= 1
        slice_.write_bytes(damaged)
        seen = self.inspect(self.checkpoints)
        self.assert_one_message(seen, 10, f"{slice_} is damaged: its checksum is wrong")
        self.assertIn(str(older), seen.out)
        self.assert_one_message(self.train(job_file, "--resume", newest).wait(), 10, f"{slice_} is damaged")
        job = self.train(job_file, "--resume", self.checkpoints, "--set", "train.steps=3").done()
        self.assertIn(f"skipping the checkpoint {newest}", job.err)


if __name__ == "__main__":
    harness.main()
