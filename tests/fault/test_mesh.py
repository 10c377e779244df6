"""Jobs whose model is in stages and whose tensors are in parts, both at once: what one worker would have learnt, also where they
go on from and to other meshes; a worker that is killed or stuck; what cannot be."""

import json
import os
import re
import signal

import harness
from text_job import TextJob


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
        woven = {"mesh__schedule": "zero_bubble", "mesh__tensor_weights": "speed", "mesh__sequence_parallel": True}
        in_parts, _ = self.run_to(self.write_text_job("mesh", **woven, **both), 7, *folder, ranks=4)
        self.assertIn("in parts on 2 ranks, as are the sequences between them", in_parts.out)
        own, report = self.run_to(self.write_text_job("mesh", mesh__stages=2, mesh__tensor=[1, 2]), 8, *folder, ranks=3)
        self.assertIn("their tensors in parts on 1, 2 ranks", own.out)
        self.assertRegex(own.out, r"stage 0  \[rank 0\]  units .*, \d+ parameters")
        self.assertEqual([report["mesh"][key] for key in ("stages", "replicas", "tensor")], [2, 1, [1, 2]])
        _, report = self.run_to(self.write_text_job("mesh", zero__level=3, zero__shards=[1, 2], **both), 9, *folder, ranks=8)
        self.assert_same_end("mesh", 9)
        self.assertAlmostEqual(report["test_perplexity"], alone["test_perplexity"], 10)

    def test_auto_takes_a_mesh_and_says_which(self):
        self.run_to(self.write_text_job("alone"), 3, ranks=1)
        job, _ = self.run_to(self.write_text_job("mesh"), 3, "--set", "mesh=auto", ranks=2)
        self.assertRegex(job.out, r'mesh = "auto": .* a step.*; not ')
        self.assertRegex(job.out, r"tensors in parts on 2.*, .* a step \(sums of activations take .* over a link of .* Gbit/s\)")
        self.assert_same_end("mesh", 3)
        both = {"mesh__stages": 2, "mesh__replicas": 1, "mesh__tensor": "auto"}
        # Three workers in two stages: one of these is in parts, the other is not.
        job, report = self.run_to(self.write_text_job("own", **both), 3, ranks=3)
        self.assertRegex(job.out, r'mesh.tensor = "auto": 2 stages, tensors in parts on (1 \+ 2|2 \+ 1), \w+ × ')
        self.assertIn(report["mesh"]["tensor"], ([1, 2], [2, 1]))
        self.assert_same_end("own", 3)

    def test_a_plan_shows_what_the_job_asks_for(self):
        """As a row of its own with its picture, and as JSON; what cannot be is refused in training's words."""
        workers = ["--worker", "cpu:threads=1"] * 2
        stages = self.write_text_job("plan", mesh__stages=2, mesh__cuts=[1], mesh__schedule="gpipe", mesh__micro_batches=2)
        plan = self.start("plan", "--details", stages, *workers).done()
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
        run = self.train(stages, "--set", "mesh.cuts=[1, 2]", workers=("cpu:threads=1",) * 2).wait()
        plan = self.start("plan", "--details", stages, *workers, "--set", "mesh.cuts=[1, 2]").wait()
        self.assertEqual([plan.status, plan.error()], [run.status, run.error()])
        unknown = self.start("plan", "--details", stages, *workers, "--set", "parallel.balance=equal").wait()
        self.assertRegex(unknown.out, 'as the job says  +not planned: meshes are planned with parallel.balance = "auto"')
        job_file = self.write_text_job("alike", mesh__stages=2, mesh__tensor=[2, 2])
        alike = self.start("plan", "--details", job_file, *workers, *workers).wait()
        self.assertRegex(alike.out, r"as the job says: 2 stages, tensors in parts on 2, \w+ × ")

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

    def test_pauses_for_a_low_speed_do_not_make_each_other_longer(self):
        """Each part pauses for what it computes, not for the other's pauses, which it waits for in every sum."""
        for settings, ranks, steps in (({"mesh__stages": 2, "mesh__tensor": 2, "mesh__micro_batches": 2}, 4, 8),
                                       ({"mesh__tensor": 2}, 2, 40)):
            with self.subTest(**settings):
                job_file = self.write_text_job(f"slow{ranks}", **settings)
                spent = {}
                for slow, speeds in ((False, ("1", "1")), (True, ("0.2", "0.1"))):
                    workers = [f"cpu:threads=1,speed={speed}" for speed in speeds] * (ranks // 2)
                    spent[slow] = self.reported(job_file, "--set", f"train.steps={steps}", "--set", "train.evaluate=false",
                                                workers=workers)["elapsed_s"]
                self.assertLess(spent[True], 15 * spent[False] + 2)
                self.assert_nothing_left()

    def test_what_cannot_be_says_what_would(self):
        both = {"mesh__stages": 2, "mesh__tensor": 2}
        for settings, ranks, part in (
                (both, 6, "4 or 8 would do"), ({**both, "model__heads": 1}, 4, "take mesh.tensor = 1 or less"),
                ({**both, "zero__level": 1, "zero__shards": [2, 1, 1]}, 8, "has 3 weights for 2 replicas of a mesh"),
                ({"mesh__tensor": 2, "zero__level": 1, "zero__shards": [0]}, 2, "shards"),
                ({**both, "mesh__tensor": [1, 2, 1]}, 4, "set mesh.stages = 3"),
                ({**both, "mesh__tensor": [1, 3], "mesh__tensor_weights": [2, 1]}, 4, "stage 1 of 2 has 3 ranks"),
                ({**both, "mesh__stages": "auto", "mesh__tensor": 3}, 4, "or mesh.tensor")):
            with self.subTest(part):
                job = self.train(self.write_text_job("refused", **settings), workers=("cpu:threads=1",) * ranks).wait()
                self.assert_one_message(job, harness.INVALID_ARGUMENT, part)
        self.assert_one_message(self.train(self.write_job(mesh__tensor=2)), harness.UNSUPPORTED, "GPT-2 and Llama do")


if __name__ == "__main__":
    harness.main()
