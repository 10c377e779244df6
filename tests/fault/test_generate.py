"""Texts and evaluations by several workers, each with a part of the model: what one worker says; a model that fits on none
of them; a worker that is killed; meshes that cannot be."""

import json

import harness
from harness import wait_until
from text_job import TextJob

CPU = "cpu:threads=1"
PROMPT = "the cät"  # more than one byte each: it comes to the ranks as it is


class Generate(TextJob):
    def trained(self, name="run", ranks=1, steps=4, **settings):
        """A job file whose checkpoint is in a folder of that name."""
        job_file = self.write_text_job(name, **{"model__layers": 2, "train__evaluate": False, "checkpoint__every_steps": 0, **settings})
        self.run_to(job_file, steps, ranks=ranks)
        return job_file

    def generate(self, run, *arguments, workers=(CPU,)):
        specs = [text for worker in workers for text in ("--worker", worker)]
        return self.start("generate", run, "--prompt", PROMPT, *specs, *arguments)

    def written(self, run, *arguments, workers=(CPU,), drawn=("--tokens", 40, "--temperature", 1.5, "--seed", 3)):
        job = self.generate(run, *drawn, *arguments, workers=workers).done()
        self.assertEqual(job.err, "")
        return job.out

    def test_stages_write_what_one_worker_does(self):
        for family, dtype in (("gpt2", "float64"), ("llama", "float32")):
            with self.subTest(family):
                self.trained(family, model__name=family, train__dtype=dtype)
                run = self.folder / family
                expected = self.written(run)
                self.assertTrue(expected.startswith(PROMPT))
                self.assertEqual(self.written(run, workers=(CPU,) * 2), expected)
        expected = self.written(self.folder / "gpt2")
        for ranks in (1, 2):
            as_json = json.loads(self.written(self.folder / "gpt2", "--json", workers=(CPU,) * ranks))
            self.assertEqual(as_json["text"], expected.removesuffix("\n"))
            self.assertEqual((len(as_json["prompt_tokens"]), len(as_json["tokens"])), (len(PROMPT.encode()), 40))
        some = ("--set", "mesh.tensor=[2, 1]", "--set", "mesh.stages=2")
        self.assertEqual(self.written(self.folder / "gpt2", *some, workers=(CPU,) * 3), expected)
        for setting in ("mesh=auto", "mesh.tensor=auto"):
            for ranks in (1, 2):
                with self.subTest(setting, ranks=ranks):
                    self.assertEqual(self.written(self.folder / "gpt2", "--set", setting, workers=(CPU,) * ranks), expected)

    def test_a_job_file_says_how_its_model_is_cut(self):
        job_file = self.trained("sliced", ranks=2, mesh__stages=2, mesh__cuts=[1])
        expected = self.written(self.folder / "sliced")
        self.assertEqual(self.written(job_file, workers=(CPU,) * 2), expected)
        self.assertEqual(self.written(job_file, "--set", f'cluster.workers=["{CPU}", "{CPU}"]', workers=()), expected)
        four = ", ".join([f'"{CPU}"'] * 4)
        self.assertEqual(self.written(job_file, "--set", f"cluster.workers=[{four}]", "--set", "mesh.replicas=2", workers=()), expected)
        launched = self.start("launch", "-n", 2, "--no-prefix", "--", harness.BIMETAL, "generate", self.folder / "sliced", "--prompt",
                              PROMPT, "--tokens", 40, "--temperature", 1.5, "--seed", 3, "--worker", CPU, "--worker", CPU).wait()
        self.assertEqual((launched.status, launched.out), (0, expected), launched.err)

    def test_a_model_that_fits_on_no_worker_writes(self):
        """170 MB of parameters."""
        self.trained("large", steps=1, model__layers=6, model__width=768, model__heads=12, train__dtype="float32",
                     train__optimizer="sgd", train__momentum=0.0)
        tight = f"{CPU},memory=145MiB"
        alone = self.generate(self.folder / "large", "--tokens", 2, workers=(tight,)).wait()
        self.assertNotEqual(alone.status, 0)
        few = ("--tokens", 4, "--temperature", 0)
        self.assertEqual(self.written(self.folder / "large", workers=(tight,) * 2, drawn=few),
                         self.written(self.folder / "large", drawn=few))

    def start_endless(self, *arguments):
        self.trained()
        job = self.generate(self.folder / "run", "--tokens", 10_000_000, "--set", "mesh.cuts=[1,2]", *arguments, workers=(CPU,) * 3)
        wait_until(lambda: len(job.out) > 20 or job.process.poll() is not None, "a text", job)
        return job

    def test_a_killed_stage_ends_all(self):
        job = self.start_endless()
        self.kill(job, 1)
        self.assert_one_message(job, harness.PEER_LOST, "rank 1 (stage 1 of 3, cpu:threads=1", "signal 9")

    def test_ctrl_c_ends_it(self):
        job = self.start_endless()
        job.end()
        self.assertNotIn("error", job.err)

    def test_meshes_that_cannot_be(self):
        self.trained()
        run = self.folder / "run"
        for settings, ranks, part in (
                (("mesh.stages=2",), 3, "give --worker 2 times, or --set mesh.stages=3"),
                (("mesh.stages=2",), 1, "there is 1"),
                (("mesh.tensor=2", "mesh.stages=auto"), 3, "workers in multiples of 2"),
                (("mesh.stages=2", "mesh.tensor=[1, 2]"), 4, "give --worker 3 times, or --set mesh=auto"),
                (("mesh.stages=auto", "mesh.tensor=[1, 2]"), 4, "is a mesh of 3 workers, and there are 4"),
                (("mesh.stages=auto", "mesh.tensor=[1, 2]"), 1, "there is 1: a text"),
                (("mesh.cuts=[9]",), 2, "units at which a model of 4"),
                (("mesh.cuts=[1,2]",), 2, "give the 1 units"),
                (("mesh.stage=2",), 2, "did you mean 'stages'"),
                ((), 5, "cannot be cut into 5 pieces")):
            with self.subTest(part):
                sets = [word for setting in settings for word in ("--set", setting)]
                self.assert_one_message(self.generate(run, *sets, workers=(CPU,) * ranks).wait(), harness.INVALID_ARGUMENT, part)
        nothing = self.generate(self.folder / "nowhere", workers=(CPU,) * 2).wait()
        self.assert_one_message(nothing, harness.INVALID_ARGUMENT, "there is no checkpoint in")
        empty = self.start("generate", run, "--prompt", "", "--worker", CPU, "--worker", CPU).wait()
        self.assert_one_message(empty, harness.INVALID_ARGUMENT, "the prompt is empty")


class EvaluateTogether(TextJob):
    def evaluate(self, job_file, *arguments, workers):
        specs = [text for worker in workers for text in ("--worker", worker)]
        return self.start("evaluate", job_file, *specs, *arguments).wait()

    def figures(self, job_file, run, *settings, ranks):
        sets = [word for setting in settings for word in ("--set", setting)]
        job = self.evaluate(job_file, "--checkpoint", run, "--report", "report.json", *sets, workers=(CPU,) * ranks)
        self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        figures = json.loads((self.folder / "report.json").read_text())
        self.assertIn("step-00000004", job.out)
        return figures

    def assert_same_figures(self, figures, expected):
        self.assertEqual(figures["samples"], expected["samples"])
        for name, value in expected["ensemble"].items():
            self.assertAlmostEqual(figures["ensemble"][name], value, delta=1e-12 * value, msg=name)

    def test_every_mesh_says_what_one_worker_says(self):
        text = self.write_text_job("run", train__evaluate=False)
        self.run_to(text, 4, ranks=1)
        alone = self.figures(text, self.folder / "run", ranks=1)
        for settings, ranks in (((), 2), (("mesh.stages=2", "mesh.replicas=[1, 2]"), 3), (("mesh=auto",), 2),
                                (("mesh.stages=2", "mesh.tensor=[2, 1]", "mesh.cuts=[1]"), 6), (("mesh.tensor=auto",), 2),
                                (("mesh.stages=2", "zero.level=3"), 2), (("mesh.stages=2", "parallel.mode=server"), 2)):
            with self.subTest(settings=settings, ranks=ranks):
                self.assert_same_figures(self.figures(text, self.folder / "run", *settings, ranks=ranks), alone)

    def test_images_too(self):
        images = self.write_job(train__steps=4, train__dtype="float64", checkpoint__every_steps=0)
        self.train(images).wait()
        alone = self.figures(images, self.checkpoints, ranks=1)
        together = self.figures(images, self.checkpoints, "mesh.stages=2", ranks=2)
        self.assertEqual(together["ensemble"]["test_accuracy"], alone["ensemble"]["test_accuracy"])
        refused = self.evaluate(images, "--checkpoint", self.checkpoints, "--predictions", "p.safetensors", workers=(CPU,) * 2)
        self.assert_one_message(refused, harness.INVALID_ARGUMENT, "without --predictions")
        other = self.evaluate(images, "--checkpoint", self.checkpoints, "--set", "model.name=linear", workers=(CPU,) * 2)
        self.assert_one_message(other, harness.INVALID_ARGUMENT, "holds another model")


if __name__ == "__main__":
    harness.main()
