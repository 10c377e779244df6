"""`bimetal evaluate` and `bimetal job`: what a checkpoint is worth, and what a job file comes to."""

import json

import harness
from harness import FaultTest


class Evaluate(FaultTest):
    def setUp(self):
        super().setUp()
        self.job = self.write_job(train__steps=8, train__evaluate=True, train__learning_rate=0.001, checkpoint__every_steps=0)

    def trained(self, seed):
        place = self.folder / f"seed-{seed}"
        return place, self.reported(self.job, "--set", f"train.seed={seed}", "--set", f"checkpoint.dir={place}")["test_accuracy"]

    def evaluate(self, *arguments):
        return self.start("evaluate", self.job, "--worker", "cpu:threads=1", *arguments).wait()

    def test_it_says_what_training_said(self):
        places, accuracies = zip(*(self.trained(seed) for seed in (1, 2)))
        both = [word for place in places for word in ("--checkpoint", place)]
        job = self.evaluate(*both, "--report", "report.json", "--predictions", "p.safetensors")
        self.assertEqual(job.status, 0, job.err)
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual([entry["test_accuracy"] for entry in report["checkpoints"]], list(accuracies))
        self.assertEqual(report["samples"], 128)
        self.assertIn("ensemble of 2", job.out)
        self.assertIn(f"{100 * report['ensemble']['test_accuracy']:.2f} %", job.out)
        self.assertTrue((self.folder / "p.safetensors").stat().st_size > 128 * 10 * 4)

        alone = self.evaluate("--checkpoint", places[0] / "step-00000008")
        self.assertEqual(alone.status, 0, alone.err)
        self.assertNotIn("ensemble", alone.out)
        offloads = ["--worker", "cpu:threads=1,offload_optimizer=host"]
        for workers in (offloads, offloads * 2):
            job = self.start("evaluate", self.job, *workers, "--checkpoint", places[0]).done()

    def test_what_cannot_be_evaluated_is_named(self):
        place, _ = self.trained(1)
        model = place / "step-00000008" / "model.safetensors"
        self.assert_one_message(self.evaluate("--checkpoint", self.folder), harness.INVALID_ARGUMENT,
                                "there is no checkpoint in")
        self.assert_one_message(self.evaluate("--checkpoint", place, "--set", "model.name=linear"),
                                harness.INVALID_ARGUMENT, "holds another model")
        model.write_bytes(model.read_bytes()[:-1])
        corrupt_data = 10
        self.assert_one_message(self.evaluate("--checkpoint", place, "--predictions", "p.safetensors"), corrupt_data,
                                "is damaged")
        self.assertFalse((self.folder / "p.safetensors").exists())


class ShowJob(FaultTest):
    def test_every_key_is_there_and_changes_show(self):
        job = self.write_job(train__learning_rate=1)
        as_json = self.start("job", job, "--set", "train.epochs=7", "--json").done()
        values = json.loads(as_json.out)
        self.assertEqual((values["train"]["epochs"], values["train"]["momentum"]), (7, 0.9))
        self.assertIsInstance(values["train"]["learning_rate"], float)
        again = self.folder / "again.toml"
        again.write_text(self.start("job", job, "--set", "train.epochs=7").wait().out)
        self.assertEqual(json.loads(self.start("job", again, "--json").wait().out), values)

    def test_mistakes_are_those_of_train(self):
        job = self.start("job", self.write_job(), "--set", "train.epoch=1").wait()
        self.assert_one_message(job, harness.INVALID_ARGUMENT, "did you mean 'epochs'?")


if __name__ == "__main__":
    harness.main()
