"""Jobs whose tensors are in parts on several workers: what one worker would have learnt, also where they go on with other parts,
and after a worker is killed."""

import json

import harness
from text_job import TextJob


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

    def test_a_killed_worker_is_named_and_one_goes_on_alone(self):
        job = self.train(self.write_text_job("run", mesh__tensor=2, checkpoint__dir=str(self.checkpoints)))
        self.wait_for_a_told_checkpoint(job)
        pid = self.kill(job, 1)
        self.assert_one_message(job.wait(), harness.PEER_LOST, "rank 1", f"pid {pid}", "signal 9", "--resume")
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
                    self.train(job_file, "--set", f"train.steps={steps}", "--set", "train.evaluate=false",
                               "--report", self.folder / "run.json",
                               workers=[f"cpu:threads=1,speed={speed}" for speed in speeds] * (ranks // 2)).done()
                    spent[slow] = json.loads((self.folder / "run.json").read_text())["elapsed_s"]
                self.assertLess(spent[True], 15 * spent[False] + 2)
                self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
