"""A worker with little memory: its share is capped and the job goes on; where that is impossible,
one message says who lacks memory."""

import json

import harness
from harness import FaultTest


class OutOfMemory(FaultTest):
    image_side = 56

    # 512 images of this size a worker, whose activations need some 600 MB. Half of that is never
    # there, while what a process needs beside them is.
    job = {"model__name": "cnn", "train__global_batch": 1024, "train__steps": 2,
           "train__micro_batch": 512, "parallel__balance": "equal"}

    def test_the_job_goes_on_with_smaller_pieces_or_a_smaller_share(self):
        report = self.folder / "report.json"
        job = self.train(self.write_job(**self.job), "--report", report,
                         workers=("cpu:threads=1", "cpu:threads=1,memory=300MiB")).done()
        self.assertIn("note: rank 1 ran out of memory on 512 samples", job.out)
        figures = json.loads(report.read_text())
        self.assertEqual(figures["steps"], 2)
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), 2 * 1024)

    def test_not_even_one_sample_fits_anywhere(self):
        job = self.train(self.write_job(**self.job),
                         workers=("cpu:threads=1,memory=1MiB", "cpu:threads=1,memory=1MiB")).wait()
        self.assert_one_message(job, harness.OUT_OF_MEMORY, "memory", "rank")


if __name__ == "__main__":
    harness.main()
