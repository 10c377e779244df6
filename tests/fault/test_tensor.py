"""Jobs whose tensors are in parts on several workers: what one worker would have learnt, also where they go on with other parts,
and after a worker is killed."""

import json
import os
import signal

import harness
from text_job import TextJob
from told import wait_for_a_told_checkpoint


class Tensor(TextJob):
    def test_sequences_in_parts_go_on_from_whole_ones(self):
        _, alone = self.run_to(self.write_text_job("alone"), 9, ranks=1)
        sequence = {"mesh__sequence_parallel": True}
        folder = ("--resume", self.folder / "parts")
        first, _ = self.run_to(self.write_text_job("parts", mesh__tensor=2, mesh__tensor_weights=[2, 1], **sequence), 3, ranks=2)
        self.assertIn("in parts on 2 ranks, as are the sequences between them, by weights of 2 : 1", first.out)
        self.run_to(self.write_text_job("parts", mesh__tensor=2), 6, *folder, ranks=2)
        _, report = self.run_to(self.write_text_job("parts", mesh__tensor=2, mesh__stages=2, mesh__micro_batches=2,
                                                    train__recompute="all", **sequence), 9, *folder, ranks=4)
        self.assert_same_end("parts", 9)
        self.assertAlmostEqual(report["test_perplexity"], alone["test_perplexity"], 10)
        self.assert_nothing_left()

    def test_a_killed_worker_is_named_and_one_goes_on_alone(self):
        job = self.train(self.write_text_job("run", mesh__tensor=2, checkpoint__dir=str(self.checkpoints)))
        wait_for_a_told_checkpoint(self, job)
        pid = self.ranks_of(job)[1]
        os.kill(pid, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, harness.PEER_LOST, "rank 1", f"pid {pid}", "signal 9", "--resume")
        self.assert_nothing_left()
        self.assert_can_resume(self.write_text_job("run", checkpoint__dir=str(self.checkpoints)), workers=("cpu:threads=1",))

    def test_pauses_for_a_low_speed_do_not_make_each_other_longer(self):
        """Each part pauses for what it computes, not for the other's pauses, which it waits for in every sum."""
        for settings, ranks, steps in (({"mesh__stages": 2, "mesh__tensor": 2, "mesh__micro_batches": 2}, 4, 8),
                                       ({"mesh__tensor": 2}, 2, 40)):
            with self.subTest(**settings):
                job_file = self.write_text_job(f"slow{ranks}", **settings)
                spent = {}
                for slow, speeds in ((False, ("1", "1")), (True, ("0.2", "0.1"))):
                    job = self.train(job_file, "--set", f"train.steps={steps}", "--set", "train.evaluate=false",
                                     "--report", self.folder / "run.json",
                                     workers=[f"cpu:threads=1,speed={speed}" for speed in speeds] * (ranks // 2)).wait()
                    self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
                    spent[slow] = json.loads((self.folder / "run.json").read_text())["elapsed_s"]
                self.assertLess(spent[True], 15 * spent[False] + 2)
                self.assert_nothing_left()

    def test_what_cannot_be_says_what_would(self):
        for settings, status, part in (
                ({"mesh__tensor": 3}, harness.INVALID_ARGUMENT, "3 would do"),
                ({"mesh__tensor": 2, "model__heads": 1}, harness.INVALID_ARGUMENT, "take mesh.tensor = 1 or less"),
                ({"mesh__tensor": 2, "mesh__tensor_weights": [1, 2, 3]}, harness.INVALID_ARGUMENT, "has 3 weights"),
                ({"mesh__tensor": 2, "zero__level": 1, "zero__shards": [1, 2]}, harness.INVALID_ARGUMENT,
                 "has 2 weights for 1 replicas of a mesh"),
                ({"mesh__tensor": 2, "zero__level": 1, "zero__shards": [0]}, harness.INVALID_ARGUMENT, "shards")):
            with self.subTest(part):
                job = self.train(self.write_text_job("refused", **settings)).wait()
                self.assert_one_message(job, status, part)
        job = self.train(self.write_job(mesh__tensor=2)).wait()
        self.assert_one_message(job, harness.UNSUPPORTED, "GPT-2 and Llama do")
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
