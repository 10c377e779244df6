"""Jobs whose parameters, gradients and optimizer states are in shards: what one worker would have learnt,
also where they go on at another level on other ranks, and after a worker is killed."""

import array
import json
import os
import signal
import struct

import harness
from harness import FaultTest


def tensors_of(path):
    """The float64 tensors of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: array.array("d", data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if entry["dtype"] == "F64"}


class Zero(FaultTest):
    def write_exact_job(self, name, **settings):
        """Adam on a CNN with a clipped gradient, whose every step is the same on any number of workers."""
        return self.write_job(f"{name}.toml", **{
            "model__name": "cnn", "train__dtype": "float64", "train__optimizer": "adamw", "train__clip_norm": 0.5,
            "train__weight_decay": 0.1, "train__decay_on": "matrices", "train__steps": 30, "train__micro_batch": 20,
            "checkpoint__every_steps": 10, "checkpoint__dir": str(self.folder / name), "train__evaluate": True,
            **settings})

    def run_to(self, job_file, step, *arguments, ranks, **options):
        workers = ("cpu:threads=1", "cpu:threads=1,speed=0.5", "cpu:threads=1,speed=0.3")[:ranks]
        job = self.train(job_file, "--set", f"train.steps={step}", *arguments, workers=workers, **options).wait()
        self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        return job

    def last(self, name, step, file="model.safetensors"):
        return tensors_of(self.folder / name / f"step-{step:08}" / file)

    def assert_same(self, ours, expected):
        self.assertEqual(ours.keys(), expected.keys())
        self.assertGreater(len(expected), 0)
        for name, values in expected.items():
            self.assertLess(max(abs(a - b) for a, b in zip(ours[name], values, strict=True)), 1e-12, name)

    def test_any_level_goes_on_from_any_other(self):
        self.run_to(self.write_exact_job("alone"), 30, ranks=1)
        expected = self.last("alone", 30)
        folder = ("--resume", self.folder / "shards")
        self.run_to(self.write_exact_job("shards", zero__level=3, zero__shards=[5, 2, 0]), 10, ranks=3)
        self.run_to(self.write_exact_job("shards", zero__level=1, zero__shards="memory"), 15, *folder, ranks=2)
        self.run_to(self.write_exact_job("shards", zero__level=2, zero__shards="speed"), 20, *folder, ranks=2)
        self.run_to(self.write_exact_job("shards"), 25, *folder, ranks=1)
        self.run_to(self.write_exact_job("shards", zero__level=3, zero__shards="equal"), 30, *folder, ranks=2)
        self.assert_same(self.last("shards", 30), expected)
        self.assert_same(self.last("shards", 30, "optimizer.safetensors"),
                         self.last("alone", 30, "optimizer.safetensors"))
        self.assert_nothing_left()

    def test_evaluation_gives_what_one_worker_says(self):
        said = []
        for name, ranks, settings in (("alone", 1, {}), ("level3", 3, {"zero__level": 3, "zero__shards": [1, 3, 0]})):
            report = self.folder / f"{name}.json"
            self.run_to(self.write_exact_job(name, train__epochs=1, **settings), 1000, "--report", report, ranks=ranks)
            said.append(json.loads(report.read_text())["evaluations"])
        self.assertEqual([entry["test_accuracy"] for entry in said[0]], [entry["test_accuracy"] for entry in said[1]])
        self.assertGreater(len(said[0]), 0)

    def test_a_killed_worker_is_named_and_the_rest_goes_on(self):
        job_file = self.write_job(zero__level=3, zero__shards=[1, 2])
        job = self.train(job_file)
        self.wait_for_checkpoint(job)
        pid = self.ranks_of(job)[1]
        os.kill(pid, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, harness.PEER_LOST, "rank 1", f"pid {pid}", "signal 9", "--resume")
        self.assert_nothing_left()
        alone = self.write_job(zero__level=3, zero__shards="equal")
        self.assert_can_resume(alone, workers=("cpu:threads=1",))
        self.assert_nothing_left()

    def test_a_worker_without_memory_takes_smaller_pieces(self):
        job = self.train(self.write_job(model__name="cnn", train__steps=4, train__global_batch=4096,
                                        train__micro_batch=4096, zero__level=3, zero__shards="equal"),
                         workers=("cpu:threads=1,memory=300MB", "cpu:threads=1")).wait()
        self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        self.assertIn("rank 0 ran out of memory", job.out)
        self.assert_nothing_left()

    def test_what_cannot_be(self):
        for settings, part in (({"zero__shards": [1, 2, 3]}, "zero.shards has 3 weights for 2 ranks"),
                               ({"parallel__mode": "server"}, "does not go with parallel.mode"),
                               ({"compression__gradients": "int8"}, "does not go with compression.gradients"),
                               ({"train__optimizer": "lamb"}, "whole tensors")):
            with self.subTest(part):
                job = self.train(self.write_job(zero__level=2, **settings)).wait()
                self.assertNotEqual(job.status, 0)
                self.assertIn(part, job.err)


if __name__ == "__main__":
    harness.main()
