"""Jobs whose model is cut into stages: choices and their display, a stuck stage that its neighbours name, and
impossible meshes. For their results, and for others that go on with them: tests/golden, test_mesh.py and
test_killed_worker.py."""

import json
import os
import shutil
import signal
import time

import harness
from exact_job import ExactJob
from text_job import TextJob


class Pipeline(ExactJob):
    def test_a_trace_shows_stages(self):
        trace = self.folder / "trace.json"
        job = self.run_to(self.write_exact_job("stages", mesh__stages=3, mesh__schedule="zero_bubble"), 5, "--profile", "3:4",
                          "--profile-trace", trace, ranks=3)
        self.assertIn("stage 2  [rank 2]", job.out)
        self.assert_shows_stages(json.loads(trace.read_text())["traceEvents"])

    def assert_shows_stages(self, events):
        places = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        for rank in range(3):
            self.assertIn(f"stage {rank} of 3", places[rank])
            names = {event["name"] for event in events if event["pid"] == rank and event["ph"] == "X"}
            self.assertIn("forward of micro-batch 1", names)
            self.assertIn("backward of weights of micro-batch 0", names)
            self.assertIn("bimetal::bubble", names)
            self.assertIn("waiting for " + ("forward" if rank else "backward of inputs") + " of micro-batch 0", names)

    def test_auto_chooses_and_goes_on(self):
        self.run_to(self.write_exact_job("alone"), 5, ranks=1)
        job = self.run_to(self.write_exact_job("stages", mesh__stages="auto", mesh__replicas=1), 5, ranks=2)
        self.assertRegex(job.out, r'mesh.stages = "auto": 2 stages, \w+ × \d+ micro-batch(es)?, .* a step\n')
        self.assertIn("stage 1  [rank 1]", job.out)
        self.assert_same_end("stages", 5)
        free = self.run_to(self.write_exact_job("free", mesh__stages="auto"), 1, ranks=2)
        self.assertRegex(free.out, 'mesh.stages = "auto": .* a step; not .* a step')

    @harness.waits
    def test_a_stuck_stage_is_named(self):
        """Not one that waits for it; and the launcher does not wait for it either."""
        for stages, stuck in ((3, 2), (3, 0)):
            with self.subTest(stages=stages, stuck=stuck):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                job = self.train(self.write_job(mesh__stages=stages, parallel__timeout_s=6, checkpoint__every_steps=1_000_000,
                                                train__evaluate=False), workers=("cpu:threads=1",) * stages)
                job.wait_for_output("step ")
                os.kill(self.ranks_of(job)[stuck], signal.SIGSTOP)
                stopped = time.monotonic()
                job.wait()
                self.assertLess(time.monotonic() - stopped, harness.patient(13))
                self.assert_one_message(job, harness.TIMEOUT)
                place = rf"stage {stuck} of {stages} \(rank {stuck}\)"
                self.assertRegex(job.error(), rf"that one waits for {place}: is that stage stuck.* parallel.timeout_s sets|"
                                 rf"from {place} have not come within {harness.patient(6)} s: is|"
                                 rf"to {place} was not taken within {harness.patient(6)} s: is|"
                                 rf"no sign of this call from rank {stuck} \(")
                self.assert_nothing_left()

    def test_meshes_that_cannot_be(self):
        for settings, ranks, status, part in (
                ({"mesh__stages": 2}, 3, 2, "2 or 4 would do"),
                ({"mesh__stages": 2, "mesh__replicas": [1, 2], "parallel__balance": [1, 2]}, 3, 2, "one for each of the 3 workers"),
                ({"mesh__stages": 2, "mesh__replicas": [1, 2], "mesh__schedule": "interleaved"}, 3, 3, 'take "1f1b"'),
                ({"mesh__stages": 2, "mesh__cuts": [9]}, 2, 2, "units at which a model of"),
                ({"mesh__stages": 2, "mesh__cuts": [1, 2]}, 2, 2, "give the 1 units"),
                ({"mesh__stages": 2, "mesh__schedule": "interleaved", "mesh__chunks": 1, "mesh__micro_batches": 3}, 2, 2,
                 "2 or 4 would"),
                ({"mesh__stages": 2, "mesh__micro_batches": 33}, 4, 2, "take 32 at most"),
                ({"mesh__stages": 2, "compression__gradients": "int8"}, 2, 3, "compression.gradients")):
            with self.subTest(part):
                self.assert_one_message(self.train(self.write_job(**settings), workers=("cpu:threads=1",) * ranks), status, part)


class Room(TextJob):
    """A model of 227 MB on two workers, of which the second has less than that."""

    WORKERS = ("cpu:threads=1,memory=520MB", "cpu:threads=1,memory=190MB")

    def write_large_job(self, name, **settings):
        return self.write_text_job(name, **{
            "model__layers": 8, "model__width": 768, "model__heads": 12, "model__dropout": 0, "train__dtype": "float32",
            "train__optimizer": "sgd", "train__momentum": 0, "train__clip_norm": 0, "train__steps": 2, "train__micro_batch": 3,
            "train__evaluate": False, "checkpoint__dir": "", **settings})

    def losses(self, job_file, workers):
        told = self.reported(job_file, workers=workers)
        return [point["loss"] for point in told["history"]], told

    def test_stages_are_as_large_as_memory_allows(self):
        stages, report = self.losses(self.write_large_job("stages", mesh__stages=2), self.WORKERS)
        self.assertGreaterEqual(report["mesh"]["begins"][1], 6, "of ten units, equally fast")
        for worker in report["workers"]:
            self.assertGreater(worker["memory"]["planned_bytes"], 0)
        alone, _ = self.losses(self.write_large_job("alone"), ("cpu:threads=1",))
        for one, other in zip(alone, stages):
            self.assertAlmostEqual(one / other, 1, delta=1e-5)


if __name__ == "__main__":
    harness.main()
