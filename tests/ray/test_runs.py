"""`bimetal tune --ray` and `bimetal ensemble --ray` on a real cluster of several nodes: trials as its tasks."""

import json
import os
import signal
import subprocess
import sys
import unittest

import clusters

if not clusters.WHY_NOT:
    import ray

    from bimetal.ray.run_node import listeners

PATIENCE_S = 3 * clusters.PATIENCE_S  # several programs start one after the other


class Runs(clusters.OnCluster):
    OFFERED = ({"a": 1}, {"b": 1})

    def setUp(self):
        self.job = clusters.job("runs.toml", steps=12, evaluate=True)

    def start(self, *arguments):
        environment = {**os.environ, "RAY_ADDRESS": self.cluster.address, "TMPDIR": str(clusters.TEMPORARY)}
        self.report = clusters.TEMPORARY / "runs.json"
        self.report.unlink(missing_ok=True)
        program = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments), "--report", str(self.report), "--ray"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment, cwd=clusters.TEMPORARY)
        self.addCleanup(self.end, program)
        return program

    def output_of(self, program):
        """Its output up to its end."""
        try:
            return program.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            program.kill()
            out, err = program.communicate()
            self.fail(f"it did not end within {PATIENCE_S} s: {out}{err}")

    def end(self, program):
        if program.poll() is None:
            program.kill()
        program.communicate()

    def run_to_end(self, *arguments, status=0):
        program = self.start(*arguments)
        out, err = self.output_of(program)
        self.assertEqual(program.returncode, status, out + err)
        self.assertEqual(clusters.trials(), [], "a trial runs on")
        return out, err

    def test_1_halving_over_two_nodes(self):
        self.run_to_end("bimetal.tune", self.job, "--random", "train.learning_rate=log:1e-4..1e-1", "--trials", 4,
                        "--asha", "--reduction", 2, "--min-resource", 3, "--metric", "train_loss", "--worker", "a",
                        "--worker", "b", "--save-best", clusters.TEMPORARY / "best")
        report = json.loads(self.report.read_text())
        self.assertEqual(len(report["devices"]), 2)
        self.assertEqual(report["best"]["trained"], 12)
        self.assertEqual(len(report["best"]["workers"]), 3, "three rungs, from checkpoints that went through the driver")
        self.assertTrue(os.path.exists(os.path.join(report["best"]["checkpoint"], "model.safetensors")))
        states = [trial["state"] for trial in report["trials"]]
        self.assertEqual(states.count("failed"), 0, report["trials"])
        self.assertGreater(states.count("stopped"), 0)

    def test_2_what_no_node_offers_is_said_at_once(self):
        _, err = self.run_to_end("bimetal.tune", self.job, "--grid", "train.seed=1,2", "--worker", "mps", status=3)
        self.assertIn("no node offers 'mps'", err)

    def test_3_a_node_without_the_data_is_named(self):
        _, err = self.run_to_end("bimetal.tune", self.job, "--grid", "train.seed=1,2", "--set", "data.path=/nowhere",
                                 status=2)
        self.assertIn("The data set has to lie on each node", err)
        self.assertIn(clusters.ADDRESS, err)

    def test_4_nothing_listens_and_ctrl_c_ends_the_trials(self):
        program = self.start("bimetal.tune", self.job, "--grid", "train.learning_rate=0.01,0.02,0.03", "--set",
                             "train.steps=0")
        clusters.until(clusters.trials, PATIENCE_S, "a trial")
        places = {address.removeprefix("::ffff:") for address, _, _ in listeners(program.pid)}
        self.assertTrue(places <= {"127.0.0.1", clusters.ADDRESS}, places)
        program.send_signal(signal.SIGINT)
        _, err = self.output_of(program)
        self.assertEqual(program.returncode, 130, err)
        clusters.until(lambda: not clusters.trials(), what="the end of the trials")

    def test_5_an_ensemble_and_its_prediction(self):
        place = clusters.TEMPORARY / "ensemble"
        out, _ = self.run_to_end("bimetal.ensemble", self.job, "--members", 2, "--dir", place)
        report = json.loads(self.report.read_text())
        self.assertIn("ensemble of 2", out)
        self.assertEqual([member["test_accuracy"] for member in report["members"]],
                         [member["figures"]["test_accuracy"] for member in report["trained"]])
        here = subprocess.run([sys.executable, "-m", "bimetal.ensemble", "--predict", str(place), "--report",
                               str(self.report), "--worker", "cpu:threads=1"], capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)
        self.assertEqual(here.returncode, 0, here.stderr)
        self.assertEqual(json.loads(self.report.read_text())["ensemble"], report["ensemble"])

    def test_6_a_node_that_dies_takes_no_trial_along(self):
        program = self.start("bimetal.tune", self.job, "--grid", "train.learning_rate=0.01,0.02,0.03", "--set",
                             "train.steps=5000", "--worker", "a", "--worker", "b")
        clusters.until(lambda: program.poll() is not None or len(clusters.trials()) == 2, PATIENCE_S, "two trials")
        if program.poll() is not None:
            self.fail(f"the search has ended: {program.communicate()}")
        self.cluster.remove_node(self.nodes[1], allow_graceful=False)
        out, err = self.output_of(program)
        self.assertEqual(program.returncode, 0, out + err)
        self.assertIn("begins again: its node is gone", out)
        trials = json.loads(self.report.read_text())["trials"]
        self.assertEqual([trial["state"] for trial in trials], ["done"] * 3, trials)
        self.assertEqual({len(trial["workers"]) for trial in trials}, {1})


if __name__ == "__main__":
    unittest.main(verbosity=2)
