"""No room for a checkpoint: the job says which file and why, and older checkpoints stay whole."""

import os
import resource

import harness
from harness import FaultTest, limited

MODEL_BYTES = 4 * (784 * 256 + 256 * 256 + 256 * 10)  # the mlp's weights


class FullDisk(FaultTest):
    def first_checkpoint(self, job_file):
        self.train(job_file, "--set", "train.steps=5").done()

    def test_a_limit_on_file_sizes(self):
        job_file = self.write_job()
        self.first_checkpoint(job_file)
        job = self.train(job_file, "--resume", self.checkpoints, **limited(resource.RLIMIT_FSIZE, MODEL_BYTES // 2)).wait()
        self.assert_one_message(job, harness.SYSTEM, str(self.checkpoints))
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()
        self.assertTrue(self.saved_steps(), "the checkpoint from before is gone")
        self.assert_can_resume(job_file)

    def test_a_full_disk(self):
        self.small_disk(self.checkpoints, 8 * MODEL_BYTES)
        job_file = self.write_job()
        self.first_checkpoint(job_file)
        filler = self.checkpoints / "step-filler"
        with open(filler, "wb") as file:
            room = os.statvfs(self.checkpoints)
            file.write(bytes(max(0, room.f_bavail * room.f_frsize - MODEL_BYTES // 2)))
        self.assert_one_message(self.train(job_file, "--resume", self.checkpoints), harness.SYSTEM, str(self.checkpoints))
        self.assert_nothing_left()
        filler.unlink()
        self.assert_no_half_checkpoint()
        self.assert_can_resume(job_file)


if __name__ == "__main__":
    harness.main()
