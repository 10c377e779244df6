"""Jobs whose model is in stages and whose tensors are in parts, both at once: what one worker would have learnt, also where they
go on from and to other meshes; a worker that is killed or stuck; what cannot be."""

import json
import os
import re
import signal

import harness
from text_job import TextJob
from told import wait_for_a_told_checkpoint


class Mesh(TextJob):
    def test_any_mesh_goes_on_from_any_other(self):
        _, alone = self.run_to(self.write_text_job("alone"), 9, ranks=1)
        folder = ("--resume", self.folder / "mesh")
        both = {"mesh__stages": 2, "mesh__tensor": 2}
        first, report = self.run_to(self.write_text_job("mesh", mesh__tensor_weights=[2, 1], **both), 3, ranks=4)
        self.assertIn("by weights of 2 : 1", first.out)
        self.assertRegex(first.out, r"stage 1  \[ranks 2-3\]  units .* \(.*head\), \d+ : \d+ parameters")
        self.assertEqual([report["mesh"][key] for key in ("stages", "replicas", "tensor")], [2, 1, 2])
        self.run_to(self.write_text_job("mesh"), 5, *folder, ranks=1)
        self.run_to(self.write_text_job("mesh", mesh__schedule="zero_bubble", mesh__tensor_weights="speed", **both), 7, *folder, ranks=4)
        self.run_to(self.write_text_job("mesh", mesh__tensor=3), 8, *folder, ranks=3)
        _, report = self.run_to(self.write_text_job("mesh", zero__level=3, zero__shards=[1, 2], **both), 9, *folder, ranks=8)
        self.assert_same_end("mesh", 9)
        self.assertAlmostEqual(report["test_perplexity"], alone["test_perplexity"], 10)
        self.assert_nothing_left()

    def test_stages_may_have_parts_of_their_own_number(self):
        _, alone = self.run_to(self.write_text_job("alone"), 6, ranks=1)
        folder = ("--resume", self.folder / "mesh")
        some = {"mesh__stages": 2, "mesh__tensor": [1, 2]}
        first, report = self.run_to(self.write_text_job("mesh", **some), 2, ranks=3)
        self.assertIn("their tensors in parts on 1, 2 ranks", first.out)
        self.assertRegex(first.out, r"stage 0  \[rank 0\]  units .*, \d+ parameters")
        self.assertRegex(first.out, r"stage 1  \[ranks 1-2\]  units .* \(.*head\), \d+ : \d+ parameters")
        self.assertEqual([report["mesh"][key] for key in ("stages", "replicas", "tensor")], [2, 1, [1, 2]])
        self.run_to(self.write_text_job("mesh"), 3, *folder, ranks=1)
        self.run_to(self.write_text_job("mesh", mesh__stages=2, mesh__tensor=2, mesh__replicas=[1, 2], zero__level=2), 4, *folder,
                    ranks=6)
        self.run_to(self.write_text_job("mesh", mesh__stages=3, mesh__tensor=[1, 2, 1], zero__level=3), 5, *folder, ranks=4)
        _, report = self.run_to(self.write_text_job("mesh", mesh__tensor_weights=[2, 1], **some), 6, *folder, ranks=3)
        self.assert_same_end("mesh", 6)
        self.assertAlmostEqual(report["test_perplexity"], alone["test_perplexity"], 10)
        self.assert_nothing_left()

    def test_auto_takes_a_mesh_and_says_which(self):
        self.run_to(self.write_text_job("alone"), 3, ranks=1)
        job, _ = self.run_to(self.write_text_job("mesh"), 3, "--set", "mesh=auto", ranks=2)
        self.assertRegex(job.out, r'mesh = "auto": .* a step.*; not ')
        self.assertRegex(job.out, r"tensors in parts on 2.*, .* a step \(sums of activations take .* over a link of .* Gbit/s\)")
        self.assert_same_end("mesh", 3)
        # Of what is left open here only tensors in parts remain.
        job, _ = self.run_to(self.write_text_job("mesh", mesh__stages="auto", mesh__tensor=2), 4, "--resume", self.folder / "mesh",
                             ranks=2)
        self.assertRegex(job.out, r'mesh.stages = "auto": tensors in parts on 2, .* a step \(sums of activations')
        self.assertNotIn("; not ", job.out)
        both = {"mesh__stages": 2, "mesh__replicas": 1, "mesh__tensor": "auto"}
        job, report = self.run_to(self.write_text_job("both", **both), 3, ranks=4)
        self.assertRegex(job.out, r'mesh.tensor = "auto": 2 stages, tensors in parts on (2|1 \+ 3|3 \+ 1), \w+ × ')
        self.assertEqual([report["mesh"][key] for key in ("stages", "replicas")], [2, 1])
        self.assertIn(report["mesh"]["tensor"], (2, [1, 3], [3, 1]))
        self.assert_same_end("both", 3)
        # Three workers in two stages: one of these is in parts, the other is not.
        job, report = self.run_to(self.write_text_job("own", **both), 3, ranks=3)
        self.assertRegex(job.out, r'mesh.tensor = "auto": 2 stages, tensors in parts on (1 \+ 2|2 \+ 1), \w+ × ')
        self.assertIn(report["mesh"]["tensor"], ([1, 2], [2, 1]))
        self.assert_same_end("own", 3)
        self.assert_nothing_left()

    def test_auto_keeps_parts_as_the_job_says(self):
        """Two replicas of what is in parts, or sequences in parts, too: nothing else is left open."""
        self.run_to(self.write_text_job("alone"), 3, ranks=1)
        for level in (2, 3):  # 1 comes below
            with self.subTest(level=level):
                name = f"level{level}"
                job, _ = self.run_to(self.write_text_job(name, mesh__tensor="auto", mesh__replicas=2, zero__level=level), 3, ranks=4)
                self.assertRegex(job.out, rf'mesh.tensor = "auto": tensors in parts on 2 × 2 replicas, ZeRO level {level}, .* a step')
                self.assertRegex(job.out, rf"ZeRO level {level}: .* in shards")
                self.assertIn("the tensors of a replica are in parts on 2 ranks", job.out)
                self.assert_same_end(name, 3)
        job, _ = self.run_to(self.write_text_job("open", zero__level=1), 3, "--set", "mesh=auto", ranks=2)
        self.assertRegex(job.out, r'mesh = "auto": .*tensors in parts on 2.*, ZeRO level 1, .* a step')
        self.assert_same_end("open", 3)
        job, _ = self.run_to(self.write_text_job("sequences", mesh__tensor="auto", mesh__replicas=1, mesh__sequence_parallel=True), 3,
                             ranks=2)
        self.assertIn("as are the sequences between them", job.out)
        self.assert_same_end("sequences", 3)
        job, _ = self.run_to(self.write_text_job("whole", mesh__tensor="auto", mesh__sequence_parallel=True), 3, ranks=1)
        self.assert_same_end("whole", 3)
        weighed = {"mesh__tensor": "auto", "mesh__tensor_weights": [2, 1]}
        for ranks in (1, 2):  # that are replicas, whose tensors are whole
            self.run_to(self.write_text_job(f"weighed{ranks}", mesh__replicas=ranks, **weighed), 3, ranks=ranks)
            self.assert_same_end(f"weighed{ranks}", 3)
        self.assert_nothing_left()

    def test_a_plan_has_parts_in_shards(self):
        job = self.write_text_job("plan", zero__level=1)
        plan = self.start("plan", "--details", job, *["--worker", "cpu:threads=1"] * 2, "--json").wait()
        self.assertEqual(plan.status, 0, plan.err)
        meshes = json.loads(plan.out)["mesh"]
        ways = meshes["best"] + meshes["others"]
        self.assertTrue([way for way in ways if way["tensor"] == 2], meshes)
        self.assertEqual([meshes["asked"]["scheme"], meshes["asked"]["level"]], ["data", 1])
        for device in (device for way in meshes["best"] for stage in way["stages"] for device in stage["devices"]):
            self.assertEqual(device["kept_bytes"], device["peak_bytes"] / 16 + (16 << 20))

    def test_a_plan_shows_what_the_job_asks_for(self):
        """As a row of its own with its picture, and as JSON; what cannot be is refused in training's words."""
        workers = ["--worker", "cpu:threads=1"] * 2
        stages = self.write_text_job("plan", mesh__stages=2, mesh__cuts=[1], mesh__schedule="gpipe", mesh__micro_batches=2)
        plan = self.start("plan", "--details", stages, *workers).wait()
        self.assertEqual(plan.status, 0, plan.err)
        self.assertRegex(plan.out, r"as the job says: 2 stages, gpipe × 2 micro-batches  +\S")
        self.assertRegex(plan.out, r"stage 1  \[rank 1\]  units 1-.*, \d+ parameters, .* [GM]FLOP a step, on ")
        run = self.train(stages, "--set", "train.steps=1", workers=("cpu:threads=1",) * 2).wait()
        self.assertRegex(run.out, r"stage 1  \[rank 1\]  units 1-.*, \d+ parameters, .* [GM]FLOP a step")
        # The plan's first picture is the job's; others may follow.
        self.assertEqual(*(re.findall(r"stage \d  \[rank.*[GM]FLOP a step", out)[:1] for out in (plan.out, run.out)))
        asked = json.loads(self.start("plan", "--details", stages, *workers, "--json").wait().out)["mesh"]["asked"]
        self.assertEqual([stage["pieces"][0]["begin"] for stage in asked["stages"]], [0, 1])
        self.assertEqual(asked["stages"][0]["devices"][0]["operations"], None)  # of looking rows up
        self.assertGreater(asked["stages"][1]["devices"][0]["operations"], 0)
        for wrong in ("mesh.stages=3", "mesh.cuts=[1, 2]", "mesh.micro_batches=64"):
            with self.subTest(wrong):
                run = self.train(stages, "--set", wrong, workers=("cpu:threads=1",) * 2).wait()
                plan = self.start("plan", "--details", stages, *workers, "--set", wrong).wait()
                self.assertEqual([plan.status, plan.error()], [run.status, run.error()])
        unknown = self.start("plan", "--details", stages, *workers, "--set", "parallel.balance=equal").wait()
        self.assertRegex(unknown.out, 'as the job says  +not planned: meshes are planned with parallel.balance = "auto"')
        alike = self.start("plan", "--details", self.write_text_job("alike", mesh__stages=2, mesh__tensor=[2, 2]), *workers, *workers).wait()
        self.assertRegex(alike.out, r"as the job says: 2 stages, tensors in parts on 2, \w+ × ")
        self.assert_nothing_left()

    def test_a_plan_shows_parts_of_their_own_number(self):
        """Three workers, the second and third of which share the second stage's tensors; and two replicas of such."""
        workers = ["--worker", "cpu:threads=1"] * 3
        own = self.write_text_job("own", mesh__stages=2, mesh__cuts=[1], mesh__tensor=[1, 2], mesh__tensor_weights=[3, 1])
        plan = self.start("plan", "--details", own, *workers).wait()
        self.assertEqual(plan.status, 0, plan.err)
        self.assertRegex(plan.out, r"as the job says: 2 stages, tensors in parts on 1 \+ 2 \(3 : 1\), 1f1b × ")
        run, _ = self.run_to(own, 3, ranks=3)
        pictures = [re.findall(r"stage \d  \[rank.*\]  units .* parameters", out)[:2] for out in (plan.out, run.out)]
        self.assertEqual(len(pictures[0]), 2, plan.out)
        self.assertEqual(*pictures)
        asked = json.loads(self.start("plan", "--details", own, *workers, "--json").wait().out)["mesh"]["asked"]
        self.assertEqual([asked["tensor"], [stage["tensor_weights"] for stage in asked["stages"]]], [[1, 2], [[1], [3, 1]]])
        self.assertGreater(asked["summed_s"], 0)
        for wrong in ("mesh.tensor_weights=[3, 1, 1]", "mesh.tensor=[2, 3]"):
            with self.subTest(wrong):
                run = self.train(own, "--set", wrong, "--set", "train.steps=1", workers=("cpu:threads=1",) * 3).wait()
                plan = self.start("plan", "--details", own, *workers, "--set", wrong).wait()
                self.assertEqual([plan.status, plan.error()], [run.status, run.error()])
        two = self.start("plan", "--details", own, *workers, *workers, "--json").wait()
        asked = json.loads(two.out)["mesh"]["asked"]
        self.assertIn("2 stages × 2 replicas, tensors in parts on 1 + 2", asked["title"])
        self.assertEqual(sum(device["samples"] for device in asked["stages"][1]["devices"][::2]), 12)
        self.assert_nothing_left()

    def test_a_plan_shows_interleaved_stages(self):
        """A model of four units has one cut into two chunks of two stages: the plan's, the run's, and that of what is left open."""
        workers = ["--worker", "cpu:threads=1"] * 2
        both = {"model__layers": 2, "mesh__schedule": "interleaved", "mesh__micro_batches": 4}
        self.run_to(self.write_text_job("alone", model__layers=2), 3, ranks=1)
        stages = self.write_text_job("stages", mesh__stages=2, **both)
        plan = self.start("plan", "--details", stages, *workers, "--timeline", self.folder / "step.svg").wait()
        self.assertEqual(plan.status, 0, plan.err)
        self.assertRegex(plan.out, r"as the job says: 2 stages, interleaved × 2 chunks × 4 micro-batches  +\S")
        run, report = self.run_to(stages, 3, ranks=2)
        self.assertEqual(report["mesh"]["begins"], [0, 1, 2, 3])
        pictures = [re.findall(r"stage \d  \[rank \d\]  units \d, \d \(.*, .*\), \d+ parameters", out)[:2] for out in (plan.out, run.out)]
        self.assertEqual(len(pictures[0]), 2, plan.out)
        self.assertEqual(*pictures)
        self.assert_same_end("stages", 3)
        asked = json.loads(self.start("plan", "--details", stages, *workers, "--json").wait().out)["mesh"]["asked"]
        self.assertEqual([asked["chunks"], asked["fits"]], [2, True])
        self.assertEqual(asked["stages"][1]["pieces"], [{"begin": 1, "end": 2}, {"begin": 3, "end": 4}])
        uneven = ["--set", "mesh.micro_batches=3"]
        run = self.train(stages, *uneven, workers=("cpu:threads=1",) * 2).wait()
        plan = self.start("plan", "--details", stages, *workers, *uneven).wait()
        self.assertEqual([plan.status, plan.error()], [run.status, run.error()])
        job, report = self.run_to(self.write_text_job("open", mesh__stages="auto", mesh__replicas=1, **both), 3, ranks=2)
        self.assertIn("2 stages, interleaved × 2 chunks × 4 micro-batches", job.out)
        self.assertEqual([report["mesh"]["schedule"], report["mesh"]["begins"]], ["interleaved", [0, 1, 2, 3]])
        self.assert_same_end("open", 3)
        self.assert_nothing_left()

    def test_a_killed_worker_is_named_and_others_go_on(self):
        job_file = self.write_text_job("run", mesh__stages=2, mesh__tensor=2, checkpoint__dir=str(self.checkpoints))
        job = self.train(job_file, workers=("cpu:threads=1",) * 4)
        wait_for_a_told_checkpoint(self, job)
        pid = self.ranks_of(job)[1]
        os.kill(pid, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, harness.PEER_LOST, "rank 1 (stage 0 of 2, part 1 of 2, cpu:threads=1", f"pid {pid}", "signal 9",
                                "--resume")
        self.assert_nothing_left()
        self.assert_can_resume(self.write_text_job("run", checkpoint__dir=str(self.checkpoints), mesh__stages=2))

    def test_a_killed_worker_of_a_stage_with_parts_of_its_own_is_named(self):
        job_file = self.write_text_job("run", mesh__stages=2, mesh__tensor=[1, 2], checkpoint__dir="")
        job = self.train(job_file, workers=("cpu:threads=1",) * 3)
        job.wait_for_output("step 1")
        pid = self.ranks_of(job)[2]
        os.kill(pid, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, harness.PEER_LOST, "rank 2 (stage 1 of 2, part 1 of 2, cpu:threads=1", f"pid {pid}", "signal 9")
        self.assert_nothing_left()

    @harness.waits
    def test_a_stuck_worker_is_named(self):
        job_file = self.write_text_job("run", mesh__stages=2, mesh__tensor=2, parallel__timeout_s=3, checkpoint__dir="")
        job = self.train(job_file, workers=("cpu:threads=1",) * 4)
        job.wait_for_output("step 1")
        os.kill(self.ranks_of(job)[2], signal.SIGSTOP)
        job.wait()
        self.assertNotEqual(job.status, 0)
        self.assertRegex(job.error(), r"stage \d of 2, part \d of 2 \(rank [013]\)")
        for part in ("rank 2", "stage 1 of 2, part 0 of 2"):
            self.assertIn(part, job.error())
        self.assert_nothing_left()

    def test_what_cannot_be_says_what_would(self):
        both = {"mesh__stages": 2, "mesh__tensor": 2}
        for settings, ranks, status, part in (
                (both, 6, harness.INVALID_ARGUMENT, "4 or 8 would do"),
                ({**both, "model__heads": 1}, 4, harness.INVALID_ARGUMENT, "take mesh.tensor = 1 or less"),
                ({**both, "mesh__tensor_weights": [1, 2, 3]}, 4, harness.INVALID_ARGUMENT, "has 3 weights"),
                ({**both, "zero__level": 1, "zero__shards": [2, 1, 1]}, 8, harness.INVALID_ARGUMENT,
                 "has 3 weights for 2 replicas of a mesh"),
                ({**both, "mesh__tensor": [1, 2]}, 4, harness.INVALID_ARGUMENT, "3 or 6 would do"),
                ({**both, "mesh__tensor": [1, 2, 1]}, 4, harness.INVALID_ARGUMENT, "set mesh.stages = 3"),
                ({**both, "mesh__tensor": [1, 3], "mesh__tensor_weights": [2, 1]}, 4, harness.INVALID_ARGUMENT,
                 "stage 1 of 2 has 3 ranks"),
                ({**both, "mesh__stages": "auto", "mesh__tensor": 3}, 4, harness.INVALID_ARGUMENT, "or mesh.tensor")):
            with self.subTest(part):
                job = self.train(self.write_text_job("refused", **settings), workers=("cpu:threads=1",) * ranks).wait()
                self.assert_one_message(job, status, part)
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
