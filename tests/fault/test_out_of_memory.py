"""A worker with little memory: its share is capped and the job goes on; where that is impossible,
one message says who lacks memory."""

import json

import harness
from harness import FaultTest


class OutOfMemory(FaultTest):
    # The convolutions' activations need some 200 kB per image, with the gradients twice that.
    job = {"model__name": "cnn", "train__global_batch": 512, "train__steps": 4,
           "parallel__balance": "equal"}

    def test_the_share_is_capped_and_the_job_goes_on(self):
        report = self.folder / "report.json"
        job = self.train(self.write_job(**self.job), "--report", report,
                         workers=("cpu:threads=1", "cpu:threads=1,memory=32MiB")).wait()
        self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        first, second = json.loads(report.read_text())["workers"]
        self.assertLess(second["samples"], first["samples"])
        self.assertEqual(first["samples"] + second["samples"], 4 * 512)
        self.assert_nothing_left()

    def test_not_even_one_sample_fits_anywhere(self):
        job = self.train(self.write_job(**self.job),
                         workers=("cpu:threads=1,memory=1MiB", "cpu:threads=1,memory=1MiB")).wait()
        self.assert_one_message(job, harness.OUT_OF_MEMORY, "memory", "rank")
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
