"""Jobs whose task is written in Python: what torch alone would have learnt, in float64, however the job is run; and
what users are told where their code does not fit."""

import os
import pathlib
import re
import signal
import sys
import unittest

import torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "fault"), str(pathlib.Path(__file__).resolve().parent)]
import harness  # noqa: E402
import test_buttons  # noqa: E402
import user_tasks  # noqa: E402
from harness import FaultTest  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

STEPS, SEED, RATE, DECAY = 7, 5, 0.01, 0.1
ALIKE = ("cpu:threads=1",) * 3  # one that is emulated to be slow pauses for as long as it compiles, too
WORKERS = ("cpu:threads=1", "cpu:threads=1,speed=0.5", "cpu:threads=1,speed=0.3")


def learnt_by_torch(make_task):
    """The whole data set is one batch, so that no order of samples matters."""
    task = make_task({})
    torch.manual_seed(SEED)
    model = task.make_model().double()
    parts = task.units(model) if task.units else [model]
    batch = torch.utils.data.default_collate([task.training[i] for i in range(len(task.training))])
    batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
    weight = int(sum(getattr(task.training, "weights", torch.ones(len(task.training)))))
    scheduler = None
    if task.make_optimizer:
        made = task.make_optimizer(model)
        optimizer, scheduler = made if isinstance(made, tuple) else (made, None)
    else:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE,
                                      weight_decay=DECAY)
    for _ in range(STEPS):
        optimizer.zero_grad()
        outputs = batch[0]
        for part in parts:
            outputs = part(outputs)
        (task.loss_sum(outputs, batch) / weight).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model.state_dict()


class UserTask(FaultTest):
    def setUp(self):
        super().setUp()
        tests = pathlib.Path(__file__).resolve().parent
        self.environment["PYTHONPATH"] = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])

    def write_task(self, function, name="job.toml", **settings):
        return self.write_job(name, **{
            "model__python": f"user_tasks:{function}", "model__name": "cnn", "data__path": "",
            "train__dtype": "float64", "train__seed": SEED, "train__optimizer": "adamw",
            "train__learning_rate": RATE, "train__weight_decay": DECAY, "train__steps": STEPS, "train__evaluate": True,
            "train__global_batch": user_tasks.SAMPLES, "train__micro_batch": 13, **settings})

    def learnt(self, function, ranks, workers=WORKERS, **settings):
        folder = self.folder / f"run{len(list(self.folder.iterdir()))}"
        self.train(self.write_task(function, checkpoint__dir=str(folder), **settings), workers=workers[:ranks]).done()
        weights = folder.with_name(folder.name + "-weights")  # whole, also of checkpoints in slices
        self.start("export", folder / f"step-{STEPS:08}", "--out", weights).done()
        return load_file(weights / "model.safetensors")

    def assert_same(self, ours, expected):
        self.assertGreaterEqual(set(expected), set(ours))
        self.assertGreater(len(ours), 3)
        for name, values in ours.items():
            self.assertLess((values - expected[name]).abs().max().item(), 1e-12, name)

    def test_learns_what_torch_learns(self):
        for function, ways in {
                "dense": ((3, {"mesh__stages": 3, "mesh__schedule": "zero_bubble"}), (2, {"parallel__mode": "server"}),
                          (2, {"zero__level": 3, "train__recompute": "all"})),
                "sentences": ((3, {"parallel__balance": [5, 2, 1]}), (3, {"mesh__stages": 3}),
                              (2, {"zero__level": 2, "zero__shards": [3, 1]}))}.items():
            expected = learnt_by_torch(getattr(user_tasks, function))
            for ranks, settings in ways:
                with self.subTest(function, ranks=ranks, **settings):
                    self.assert_same(self.learnt(function, ranks, **settings), expected)

    def test_compiled_units_learn_what_torch_learns(self):
        expected = learnt_by_torch(user_tasks.dense)
        for ranks, settings in ((2, {"parallel__balance": [3, 1]}),
                                (2, {"zero__level": 3, "train__recompute": "all"}),
                                (3, {"mesh__stages": 3})):
            with self.subTest(ranks=ranks, **settings):
                self.assert_same(self.learnt("compiled", ranks, ALIKE, model__compile=True, parallel__timeout_s=900, **settings), expected)
        job = self.train(self.write_task("compiled")).done(harness.INVALID_ARGUMENT)
        self.assertIn("this layer is not compiled", job.err)

    def test_its_dropout_depends_on_the_sample_alone(self):
        settings = {"train__global_batch": 24}
        alone = self.learnt("dropped", 1, **settings)
        self.assert_same(self.learnt("dropped", 3, parallel__balance=[2, 1, 1], train__micro_batch=5, **settings), alone)
        without = self.learnt("dense", 1, **settings)
        self.assertGreater((alone["0.weight"] - without["0.weight"]).abs().max().item(), 1e-4)

    def test_optimizers_and_schedulers_of_torch(self):
        for function in ("own_optimizer", "own_adam"):
            expected = learnt_by_torch(getattr(user_tasks, function))
            self.assert_same(self.learnt(function, 2, parallel__balance=[3, 1]), expected)
            folder = self.folder / function
            for steps, ranks, resume in ((3, 2, ()), (STEPS, 1, ("--resume", folder))):
                job = self.train(self.write_task(function, checkpoint__dir=str(folder), train__steps=steps), *resume,
                                 workers=WORKERS[:ranks]).done()
            self.assert_same(load_file(folder / f"step-{STEPS:08}" / "model.safetensors"), expected)
        for settings in ({"zero__level": 1}, {"parallel__mode": "server"}):
            job = self.train(self.write_task("own_adam", **settings)).done(harness.UNSUPPORTED)
            self.assertIn("an optimizer of the task's own", job.err)

    def test_what_ranks_print_reaches_whoever_watches_rank_0(self):
        """The page's log and the terminal have it alike."""
        job = self.train(self.write_task("talking", train__steps=1_000_000, train__evaluate=False), "--page", workers=WORKERS[:2])
        browser, lines = test_buttons.Browser(job), []

        def heard(data):
            lines.extend(line["text"] for line in data.get("lines", ()) if line["kind"] == "output")
            return {f"a model is made by rank {rank}" for rank in range(2)} <= set(lines)

        if not heard(browser.told("history")):
            browser.told("news", heard)
        self.assertIn("a model is made by rank 1", job.out)
        browser.press(ask="sample")
        said = browser.told("news", lambda news: "sample" in news)["sample"]
        self.assertRegex(said["text"], r"^sample \d+: label [01], taken for [01] \(\d+ %\), [01] \(\d+ %\), loss \d")
        self.assertEqual(said["pixels"], [])
        job.end()

    def test_evaluate_and_export_know_it(self):
        job_file = self.write_task("sentences", train__steps=STEPS)
        self.train(job_file).done()
        said = self.start("evaluate", job_file, "--checkpoint", self.checkpoints).done()
        self.assertIn("perplexity", said.out)
        self.start("export", self.checkpoints, "--out", self.folder / "exported").done()
        model = user_tasks.Tied()
        missing = model.load_state_dict(load_file(self.folder / "exported" / "model.safetensors"), strict=False)
        self.assertEqual(missing.unexpected_keys, [])
        self.assertEqual(missing.missing_keys, ["head.table.weight"])
        served = self.start("serve", self.checkpoints).done(harness.UNSUPPORTED)
        self.assertIn("written in Python (user_tasks:sentences)", served.err)

    def test_the_example_learns(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        self.environment["PYTHONPATH"] = os.pathsep.join([str(root / "examples" / "python"), os.environ["PYTHONPATH"]])
        job = self.start("train", root / "examples" / "own_model.toml", "--set", "train.steps=30", "--set",
                         "train.evaluate=false").done()
        self.assertLess(float(re.search(r"trained 30 steps.* loss ([0-9.]+)", job.out)[1]), 2.0)

    def test_relaxed_jobs_take_any_layer(self):
        self.learnt("batch_norm", 2, parallel__exact="relaxed")
        self.learnt("own_dropout", 2, parallel__exact="relaxed")

    def test_a_killed_rank_is_named(self):
        job = self.train(self.write_task("dense", train__steps=0, checkpoint__every_steps=5))
        self.wait_for_checkpoint(job)
        os.kill(self.ranks_of(job)[1], signal.SIGKILL)
        self.assert_one_message(job, harness.PEER_LOST, "rank 1", "signal 9")

    def test_says_what_does_not_fit(self):
        for function, *parts in (
                ("batch_norm", "2 (BatchNorm1d)", "nn.GroupNorm", 'parallel.exact = "relaxed"'),
                ("own_dropout", "2 (Dropout)", "bimetal.task.Dropout"),
                ("no_task", "a Sequential, not a bimetal.task.Task"),
                ("not_there", "has no function not_there"),
                ("mean_loss", "has to be one number", 'reduction="sum"'),
                ("forgotten_unit", "leaves parameters of the model out: 2.bias, 2.weight"),
                ("raising", "/no/such/file", "user_tasks.py")):
            with self.subTest(function):
                job = self.train(self.write_task(function)).done(harness.INVALID_ARGUMENT)
                self.assertIn("Traceback", job.err)
                for part in parts:
                    self.assertIn(part, job.err)

    def test_says_why_a_module_cannot_be_imported(self):
        (self.folder / "half.py").write_text("import no_such_package\n")
        for spec, part in (("half:make_task", "No module named 'no_such_package'"), ("half", "package.module:function")):
            job = self.train(self.write_task("dense", model__python=spec)).done(harness.INVALID_ARGUMENT)
            self.assertIn(part, job.err)
        job = self.train(self.write_task("dense", model__layers=3)).wait()
        self.assert_one_message(job, harness.UNSUPPORTED, "model.python brings a model of its own")

    def test_ranks_with_other_versions_of_the_file_do_not_train(self):
        text = (pathlib.Path(user_tasks.__file__)).read_text()
        ranks, port = [], str(harness.free_port())
        self.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        job_file = self.write_task("dense")
        for rank in range(2):
            folder = self.folder / f"machine{rank}"
            folder.mkdir()
            (folder / "user_tasks.py").write_text(text + "\n" * rank)
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(self.start("train", job_file, folder=folder, environment=place))
        for rank in ranks:
            rank.done(harness.CALL_MISMATCH)
            self.assertIn("task = user_tasks.py", rank.err)

    def test_without_python_says_so(self):
        job = self.train(self.write_task("dense"), environment={"BIMETAL_PYTHON": "/no/such/python"}).wait()
        self.assert_one_message(job, harness.INVALID_ARGUMENT, "/no/such/python")


if __name__ == "__main__":
    unittest.main(verbosity=2)
