"""Jobs whose tensors are in parts on several workers: what one worker would have learnt, also where they go on with other parts,
and after a worker is killed."""

import array
import json
import os
import signal

import harness
from harness import FaultTest
from test_zero import tensors_of

TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 40


class Tensor(FaultTest):
    def setUp(self):
        super().setUp()
        (self.folder / "text").write_text(TEXT)
        tokens = self.start("data", "tokenize", "text", "--tokenizer", "bytes", "--out", "tokens", "--test-fraction", "0.2").wait()
        self.assertEqual(tokens.status, 0, tokens.err)

    def write_text_job(self, name, **settings):
        """AdamW on a small GPT-2 with dropout and a clipped gradient, the same on any number of workers."""
        return self.write_job(f"{name}.toml", **{
            "model__name": "gpt2", "model__layers": 1, "model__width": 24, "model__heads": 3, "model__context": 16,
            "model__dropout": 0.1, "data__name": "tokens", "data__path": str(self.folder / "tokens"), "train__dtype": "float64",
            "train__optimizer": "adamw", "train__epsilon": 1e-3, "train__clip_norm": 0.5, "train__weight_decay": 0.1,
            "train__global_batch": 12, "train__micro_batch": 6, "train__learning_rate": 0.01, "train__evaluate": True,
            "checkpoint__dir": str(self.folder / name), **settings})

    def run_to(self, job_file, step, *arguments, ranks):
        workers = ("cpu:threads=1",) * ranks
        report = self.folder / "report.json"
        job = self.train(job_file, "--set", f"train.steps={step}", "--report", report, *arguments, workers=workers).wait()
        self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        return job, json.loads(report.read_text())

    def last(self, name, step, file):
        return tensors_of(self.folder / name / f"step-{step:08}" / file)

    def assert_same(self, ours, expected):
        self.assertEqual(ours.keys(), expected.keys())
        self.assertGreater(len(expected), 0)
        for name, values in expected.items():
            self.assertIsInstance(values, array.array)
            self.assertLess(max(abs(a - b) for a, b in zip(ours[name], values, strict=True)), 1e-12, name)

    def test_any_parts_go_on_from_any_other(self):
        _, alone = self.run_to(self.write_text_job("alone"), 12, ranks=1)
        folder = ("--resume", self.folder / "parts")
        first, _ = self.run_to(self.write_text_job("parts", mesh__tensor=2, mesh__tensor_weights=[2, 1]), 3, ranks=2)
        self.assertIn("by weights of 2 : 1", first.out)
        self.run_to(self.write_text_job("parts"), 6, *folder, ranks=2)
        self.run_to(self.write_text_job("parts", mesh__tensor=3), 9, *folder, ranks=3)
        _, report = self.run_to(self.write_text_job("parts", mesh__tensor=2, mesh__tensor_weights="speed"), 12, *folder, ranks=4)
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same(self.last("parts", 12, file), self.last("alone", 12, file))
        self.assertAlmostEqual(report["test_perplexity"], alone["test_perplexity"], 10)
        self.assertEqual([worker["device"] for worker in report["workers"]], ["cpu + cpu"] * 2)
        self.assert_nothing_left()

    def test_a_killed_worker_is_named_and_one_goes_on_alone(self):
        job = self.train(self.write_text_job("run", mesh__tensor=2, checkpoint__dir=str(self.checkpoints)))
        self.wait_for_checkpoint(job)
        pid = self.ranks_of(job)[1]
        os.kill(pid, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, harness.PEER_LOST, "rank 1", f"pid {pid}", "signal 9", "--resume")
        self.assert_nothing_left()
        self.assert_can_resume(self.write_text_job("run", checkpoint__dir=str(self.checkpoints)), workers=("cpu:threads=1",))

    def test_what_cannot_be_says_what_would(self):
        for settings, status, part in (
                ({"mesh__tensor": 3}, harness.INVALID_ARGUMENT, "3 would do"),
                ({"mesh__tensor": 2, "model__heads": 1}, harness.INVALID_ARGUMENT, "take mesh.tensor = 1 or less"),
                ({"mesh__tensor": 2, "mesh__tensor_weights": [1, 2, 3]}, harness.INVALID_ARGUMENT, "has 3 weights"),
                ({"mesh__tensor": 2, "zero__level": 1}, harness.UNSUPPORTED, "does not go with zero.level")):
            with self.subTest(part):
                job = self.train(self.write_text_job("refused", **settings)).wait()
                self.assert_one_message(job, status, part)
        job = self.train(self.write_job(mesh__tensor=2)).wait()
        self.assert_one_message(job, harness.UNSUPPORTED, "GPT-2 and Llama do")
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
