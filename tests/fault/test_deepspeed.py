"""Jobs by DeepSpeed's configuration: what is trained, and what ends with an error."""

import json
import unittest

from harness import FaultTest

USUAL = {
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "betas": [0.8, 0.9], "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 0.004,
                                                      "total_num_steps": 25}},
    "gradient_clipping": 0.5,
}
THE_SAME = {"train__global_batch": 32, "train__micro_batch": 4, "train__optimizer": "adamw", "train__beta1": 0.8,
            "train__beta2": 0.9, "train__epsilon": 1e-8, "train__weight_decay": 0.01, "train__learning_rate": 0.004,
            "train__warmup": "log", "train__warmup_lag": 2, "train__warmup_steps": 5, "train__schedule": "linear",
            "train__decay_steps": 25, "train__clip_norm": 0.5}
COMMON = {"train__steps": 20, "parallel__balance": "equal"}


class DeepSpeed(FaultTest):
    def configuration(self, **changes):
        path = self.folder / "ds_config.json"
        path.write_text(json.dumps({**USUAL, **changes}))
        return path

    def loss_of(self, job, *arguments):
        return self.reported(job, *arguments, workers=("cpu:threads=1",) * 2)["train_loss"]

    def test_it_trains_what_the_same_keys_do(self):
        """Both ranks have got the configuration's, since a rank is started with the job alone."""
        expected = self.loss_of(self.write_job(**COMMON, **THE_SAME))
        found = self.loss_of(self.write_job(**COMMON), "--deepspeed", self.configuration())
        self.assertAlmostEqual(found, expected, delta=1e-6)
        changed = self.loss_of(self.write_job(**COMMON), "--deepspeed", self.configuration(), "--set",
                               "train.learning_rate=0.1")
        self.assertGreater(abs(changed - expected), 1e-3)

    def test_the_job_that_comes_of_it_is_shown(self):
        job = self.start("job", "--deepspeed", self.configuration(), "--json", "--set", "train.clip_norm=2").done()
        train = json.loads(job.out)["train"]
        self.assertEqual([train["global_batch"], train["optimizer"], train["clip_norm"]], [32, "adamw", 2.0])
        self.assertEqual(job.err, "")
        job = self.start("job", "--deepspeed", self.configuration(steps_per_print=3)).wait()
        self.assertIn("key 'steps_per_print' has no effect", job.err)

    def test_a_schedule_is_open_where_the_mesh_is(self):
        usual = self.write_job("usual.toml", **COMMON)
        open_file = self.folder / "open.toml"
        open_file.write_text('mesh = "auto"\n' + usual.read_text())
        both = ("mesh.stages=2", "mesh.tensor=1")
        for file, settings, schedule in (((open_file,), (), "auto"), ((open_file,), both, "1f1b"), ((usual,), ("mesh=auto",), "auto"),
                                         ((), ("mesh=auto",), "auto"), ((), (), "1f1b"),
                                         ((open_file,), (*both, "mesh.schedule=gpipe"), "gpipe")):
            with self.subTest(file=file, settings=settings):
                sets = [word for setting in settings for word in ("--set", setting)]
                job = self.start("job", *file, "--deepspeed", self.configuration(), "--json", *sets).wait()
                self.assertEqual((job.status, job.err), (0, ""))
                self.assertEqual(json.loads(job.out)["mesh"]["schedule"], schedule)

    def test_what_is_wrong_with_it_is_told(self):
        job_file = self.write_job(**COMMON)
        for changes, status, parts in (
                ({"train_batch_size": 33}, 2,
                 ["ds_config.json: the batch sizes do not agree", "4 × 4 × 2 ranks = 32"]),
                ({"gradient_cliping": 1}, 2, ["key 'gradient_cliping' is unknown; did you mean 'gradient_clipping'?"]),
                ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, 3,
                 ["offload_param", "zero.level = 3"]),
                ({"amp": {"enabled": True}}, 3, ["key 'amp' is not possible"])):
            with self.subTest(changes):
                job = self.train(job_file, "--deepspeed", self.configuration(**changes)).wait()
                self.assert_one_message(job, status, *parts)
        self.start("job").done(2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
