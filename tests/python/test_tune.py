"""`bimetal tune`, with real Optuna and real trials.

Exits with 77, which CTest counts as skipped, where Optuna is not installed (make setup).
"""

import contextlib
import io
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import unittest
from unittest import mock

import ranks
import searches
from searches import TWO_WORKERS, SearchTest, harness

ranks.skip_all_without("optuna", how="make setup installs it")

ENDLESS = ["--set", "train.steps=0", "--set", "train.epochs=1000000"]


class Searching(SearchTest):
    def test_a_grid_ends_with_the_best_and_how_to_repeat_it(self):
        job, report = self.report_of(
            "tune", self.job, "--grid", "train.learning_rate=1e-6,0.05", "train.optimizer=sgd,adam", "--metric",
            "train_loss", "--save-best", self.folder / "best", "--json", *TWO_WORKERS)
        self.assertEqual(json.loads(job.out), report)
        trials = report["trials"]
        self.assertEqual({(t["settings"]["train.learning_rate"], t["settings"]["train.optimizer"]) for t in trials},
                         {(rate, kind) for rate in (1e-6, 0.05) for kind in ("sgd", "adam")})
        self.assertEqual({t["state"] for t in trials}, {"done"})
        best = min(trials, key=lambda trial: trial["value"])
        self.assertEqual(report["best"]["number"], best["number"])
        self.assertIn(f"best: trial {best['number']}, train_loss", job.err)
        for key in ("train.learning_rate", "train.optimizer"):
            self.assertIn(key, job.err)

        # The command that it prints leads to the very same model, and so does the checkpoint that it keeps.
        words = shlex.split(report["best"]["command"])
        self.assertEqual(words[:2], ["bimetal", "train"])
        again, place = self.trained(*words[4::2])
        self.assertAlmostEqual(again["train_loss"], best["value"], delta=1e-12)
        self.assert_same_model(pathlib.Path(report["best"]["checkpoint"]), place)

    def test_trials_are_chosen_by_data_that_are_held_out(self):
        job, report = self.report_of("tune", self.job, "--grid", "train.learning_rate=1e-6,0.05", "--dir",
                                     self.folder / "kept", "--set", "checkpoint.keep_best=true", *TWO_WORKERS)
        self.assertEqual(report["metric"], "validation_accuracy")
        for trial in report["trials"]:
            self.assertEqual(trial["value"], trial["figures"]["best"]["validation_accuracy"])
            judged = [sorted(point)[-1] for point in trial["figures"]["evaluations"]]
            self.assertEqual(judged.count("test_accuracy"), 1, judged)
        best = report["best"]
        self.assertIn("data.validation=0.1", best["command"])
        self.assertIn(f"with the test data, which had no say: test_accuracy {best['figures']['test_accuracy']:.4f}", job.out)
        kept = self.folder / "kept" / f"trial-{best['number']:04}" / "checkpoints" / "best"
        self.assertEqual([path.name for path in kept.glob("step-*")], [f"step-{best['figures']['best']['step']:08}"])

    def test_a_search_that_was_broken_off_goes_on_in_its_folder(self):
        words = ["tune", self.job, "--grid", "train.learning_rate=0.05,0.02,0.01", "--metric", "train_loss", "--dir",
                 self.folder / "kept", "--worker", "cpu:threads=1", "--report", "report.json"]
        job = self.start(*words)
        job.wait_for_output("trial 0  train_loss")
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        known = json.loads((self.folder / "kept" / "trial-0000" / "trial.json").read_text())
        harness.wait_until(lambda: not self.processes(), "the end of its trials")
        job, report = self.report_of(*words[:-2])
        self.assertRegex(job.out, "going on with the search in .*: [123] of 3 trials are known")
        self.assertNotIn("trial 0  train_loss", job.out)
        self.assertEqual([trial["state"] for trial in report["trials"]], ["done"] * 3)
        self.assertEqual(report["trials"][0]["seconds"], known["seconds"])
        self.assertEqual(report["trials"][0]["value"], known["value"])
        from bimetal.tune.__main__ import main

        said = self.refused_by(main, *words[1:-2], "--set", "train.steps=13")
        self.assertIn("another search has been begun", said)
        self.assertIn("settings", said)

    def test_halving_stops_most_and_resumes_the_better_ones_exactly(self):
        _, report = self.report_of(
            "tune", self.job, "--random", "train.learning_rate=log:1e-5..1e-1", "--trials", "4", "--asha",
            "--reduction", "2", "--min-resource", "3", "--seed", "3", "--metric", "train_loss", "--dir", self.folder / "kept", *TWO_WORKERS)
        trials = report["trials"]
        rungs = sorted(len(trial["rungs"]) for trial in trials)
        self.assertEqual([trial["trained"] for trial in trials if trial["state"] == "done"], [12])
        self.assertGreater(rungs.count(1), 0, "nobody was stopped early")
        self.assertEqual(rungs[-1], 3)  # 3, 6 and 12 steps
        for trial in trials:
            self.assertEqual(trial["trained"], (3, 6, 12)[len(trial["rungs"]) - 1])
            self.assertTrue(1e-5 <= trial["settings"]["train.learning_rate"] <= 1e-1)
        best = report["best"]
        self.assertEqual(best["state"], "done")
        again, place = self.trained(f"train.learning_rate={best['settings']['train.learning_rate']!r}")
        self.assert_same_model(self.folder / "kept" / f"trial-{best['number']:04}" / "checkpoints", place)
        self.assertEqual(again["steps"], 12)

    def test_whole_numbers_stay_whole_and_words_are_drawn(self):
        _, report = self.report_of(
            "tune", self.job, "--random", "train.global_batch=16..64", "train.optimizer=sgd,adam",
            "train.momentum=0..0.9", "--trials", "3", "--sampler", "tpe", "--set", "train.steps=2", *TWO_WORKERS)
        for trial in report["trials"]:
            self.assertEqual(trial["state"], "done", trial)
            self.assertIsInstance(trial["settings"]["train.global_batch"], int)
            self.assertIn(trial["settings"]["train.optimizer"], ("sgd", "adam"))
        self.assertGreater(len({trial["settings"]["train.momentum"] for trial in report["trials"]}), 1)

    def test_the_example(self):
        small = ["--set", "model.name=linear", "--set", f"data.path={self.folder / 'data'}"]
        run = subprocess.run([searches.ROOT / "examples" / "tuning.sh", self.folder / "tuned", *small, *TWO_WORKERS],
                             capture_output=True, text=True, timeout=harness.PATIENCE_S, check=False,
                             env={**self.environment, "BIMETAL_PROGRAM": harness.BIMETAL})
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        best = json.loads((self.folder / "tuned" / "search.json").read_text())["best"]["settings"]
        kept = json.loads((self.folder / "tuned" / "ensemble" / "ensemble.json").read_text())
        self.assertEqual({f"{key}={value!r}" for key, value in best.items()} - set(kept["settings"]), set())
        self.assertEqual(len(kept["members"]), 3)

    def assert_same_model(self, one, other):
        from safetensors.torch import load_file

        tensors = [load_file(next(place.rglob("model.safetensors"))) for place in (one, other)]
        self.assertEqual(tensors[0].keys(), tensors[1].keys())
        for name in tensors[0]:
            self.assertLess((tensors[0][name] - tensors[1][name]).abs().max().item(), 1e-12, name)


class Writing(unittest.TestCase):
    def test_numbers_are_short_and_within_their_range(self):
        from bimetal.tune.space import _short

        self.assertEqual(_short(0.012345678901234567, 1e-3, 1e-1), "0.01235")
        self.assertEqual(_short(0.99999, 0.8, 0.99999), "0.99999")  # 1.0 would be outside
        self.assertEqual(_short(0.50000123456, 0.5, 0.500002), "0.500001235")

    def test_lines_are_rewritten_only_where_somebody_looks(self):
        from bimetal.pool.command import Screen

        for environment, live in (({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False),
                                  ({"TERM": "xterm", "NO_COLOR": "1"}, False),
                                  ({"TERM": "xterm", "OMPI_COMM_WORLD_RANK": "0"}, False)):
            out = io.StringIO()
            out.isatty = lambda: True
            with mock.patch.dict(os.environ, environment, clear=True), contextlib.redirect_stdout(out):
                screen = Screen()
                screen.show("half")
                screen.say("done")
            self.assertEqual("\x1b" in out.getvalue(), live, environment)
            self.assertEqual("\r" in out.getvalue(), live, environment)


class Failing(SearchTest):
    def test_trials_that_fail_are_counted_and_named(self):
        """One whose loss is no number, one whose process is killed, one that is well."""
        job = self.start("tune", self.job, "--grid", "train.learning_rate=1e30,0.01,0.02", "--set", "train.steps=400",
                         "--report", "report.json", "--worker", "cpu:threads=1")
        job.wait_for_output("trial ")
        harness.wait_until(lambda: job.out.count("\ntrial ") + job.out.startswith("trial ") >= 1 and self.children(job),
                           "the next trial", job)
        os.kill(self.children(job)[0], signal.SIGKILL)
        job.done()
        trials = json.loads((self.folder / "report.json").read_text())["trials"]
        failures = [trial["error"] for trial in trials if trial["state"] == "failed"]
        self.assertGreaterEqual(len(failures), 1, trials)
        self.assertTrue(any("signal 9" in failure for failure in failures), failures)
        self.assertGreaterEqual(sum(trial["state"] == "done" for trial in trials), 1, trials)
        for failure in failures:
            self.assertIn(failure.splitlines()[0], job.out)

    def test_when_all_fail_so_does_the_search(self):
        job, report = self.report_of("tune", self.job, "--grid", "train.learning_rate=1e300", *TWO_WORKERS,
                                     status=harness.NOT_FINITE)
        self.assertIsNone(report["best"])
        self.assertIn("every trial has failed; trial 0", job.err)

    def test_what_the_job_itself_has_wrong_ends_it_at_once(self):
        job = self.run_to_end("tune", self.job, "--grid", "train.learning_rate=0.1,0.2,0.3,0.4", "--set",
                              f"data.path={self.folder / 'nowhere'}", "--worker", "cpu:threads=1",
                              status=harness.INVALID_ARGUMENT)
        self.assertIn("nowhere", job.err)
        self.assertEqual(job.out.count("failed on"), 1, job.out)

    def test_ctrl_c_ends_all_trials_and_says_what_there_is(self):
        job = self.start("tune", self.job, "--grid", "train.learning_rate=0.01,0.02,0.03", *ENDLESS, *TWO_WORKERS,
                         "--report", "report.json")
        harness.wait_until(lambda: len(self.children(job)) == 2, "two trials", job)
        job.end()
        self.assertTrue(json.loads((self.folder / "report.json").read_text())["interrupted"])
        self.assertEqual(job.err.strip(), "bimetal: interrupted")

    def test_a_killed_search_leaves_no_trial_behind(self):
        job = self.start("tune", self.job, "--grid", "train.learning_rate=0.01,0.02", *ENDLESS, *TWO_WORKERS)
        harness.wait_until(lambda: len(self.children(job)) == 2, "two trials", job)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        harness.wait_until(lambda: not self.processes(), "the end of its trials")
        for scratch in self.temporary.iterdir():  # a killed process could not remove it
            shutil.rmtree(scratch)


class Wrong(SearchTest):
    def refused(self, *arguments, status=harness.INVALID_ARGUMENT):
        from bimetal.tune.__main__ import main

        return self.refused_by(main, self.job, *arguments, status=status)

    def test_keys_and_values_are_checked_before_anything_starts(self):
        for arguments, said in (
                (["--grid", "train.learning_rat=0.1"],
                 "unknown key 'learning_rat' in [train]; did you mean 'learning_rate'?"),
                (["--grid", "train.epochs=1,many"], "'epochs' in [train]: expected a whole number, found a string"),
                (["--random", "train.momentum=0.5..1.5", "--trials", "2"], "less than 1, found 1.5"),
                (["--random", "train.optimizer=a..b", "--trials", "2"], 'expected "sgd" or "adam"'),
                (["--random", "train.learning_rate=log:0..1", "--trials", "2"], "greater than 0, found 0"),
                (["--random", "train.momentum=0.9..0.1", "--trials", "2"], "LOW is above HIGH"),
                (["--random", "train.momentum=0.1..0.9"], "--random needs --trials"),
                (["--grid", "checkpoint.dir=a,b"], "cannot be searched"),
                (["--grid", "data.validation=0.1,0.2"], "trials are compared by"),
                (["--grid", "learning_rate=1"], "expected section.key"),
                (["--grid", "train.seed=1,2", "train.seed=3"], "searched twice"),
                ([], "say what to search"),
                (["--grid", "train.steps=5,9", "--asha"], "cannot be searched with --asha"),
                (["--grid", "train.seed=1,2", "--asha", "--min-resource", "50"], "--asha with train.steps = 12"),
                (["--grid", "train.seed=1,2", "--set", "train.evaluate=false"], "train.evaluate = false"),
                (["--grid", "train.seed=1,2", "--worker", "cpu:cores=2"], 'unknown key "cores"'),
                (["--grid", "train.seed=1,2", "--dir", str(self.folder)], "is not empty")):
            self.assertIn(said, self.refused(*arguments), arguments)
        self.assertIn("xpu:99", self.refused("--grid", "train.seed=1,2", "--worker", "xpu:99", status=3))

    def test_missing_optuna_is_one_message_with_the_command(self):
        program = ("import importlib.util as u, sys; f = u.find_spec; "
                   "u.find_spec = lambda n, *a: None if n == 'optuna' else f(n, *a); "
                   "sys.argv = ['bimetal tune', sys.argv[1], '--grid', 'train.seed=1']; "
                   "from bimetal.tune.__main__ import main; sys.exit(main())")
        run = subprocess.run([sys.executable, "-c", program, str(self.job)], capture_output=True, text=True, timeout=60,
                             env=self.environment, check=False)
        self.assertEqual(run.returncode, 3, run.stderr)
        self.assertEqual(run.stderr, f"bimetal: error: bimetal tune needs Optuna, which is not installed in {sys.executable}: "
                                     f'{sys.executable} -m pip install "optuna>=4" (BIMETAL_PYTHON names another interpreter)\n')


class Space(unittest.TestCase):
    def test_values_are_parted_at_commas_outside_of_brackets_and_quotes(self):
        from bimetal.tune.space import _values

        self.assertEqual(_values("0.1,0.2,0.1"), ("0.1", "0.2"))
        self.assertEqual(_values('[3,1],"a,b",auto'), ("[3,1]", '"a,b"', "auto"))

    def test_ladders(self):
        from bimetal.tune.halving import Ladder

        class Job:
            def __init__(self, steps, epochs):
                self.values = {"train.steps": steps, "train.epochs": epochs}
                self.value = self.values.__getitem__

        self.assertEqual(Ladder.of(Job(0, 9), None, 3), Ladder("train.epochs", (1, 3, 9), 3))
        self.assertEqual(Ladder.of(Job(0, 10), None, 3), Ladder("train.epochs", (1, 3, 9, 10), 3))
        self.assertEqual(Ladder.of(Job(1000, 10), 100, 4), Ladder("train.steps", (100, 400, 1000), 4))
        self.assertTrue(math.isfinite(Ladder.of(Job(0, 2), None, 2).rungs[-1]))


if __name__ == "__main__":
    harness.main()
