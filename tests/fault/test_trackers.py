"""A job's figures reach trackers; one that is broken, slow or killed costs the job nothing."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types
import unittest
import unittest.mock

import harness
from harness import FaultTest

PYTHON = os.environ.get("BIMETAL_TRACKERS_PYTHON") or str(harness.REPOSITORY / ".venv" / "bin" / "python")
# Stands in for trackio: what it is given, a line of JSON each; $STANDIN says what is wrong with it.
STANDIN = '''
import json, os, threading, time

class AlertLevel:
    INFO, WARN = "info", "warn"

class Run:
    def __init__(self, name):
        self.name, self._file = name, open(os.environ["STANDIN_FILE"], "a", buffering=1)
        self.write("init", name)
    def write(self, *what):
        self._file.write(json.dumps(what) + "\\n")
    def log(self, values, step):
        self.write("log", step, values)
        wrong = os.environ.get("STANDIN")
        if wrong == "raises":
            raise RuntimeError("no more room for figures")
        if wrong == "hangs":
            threading.Event().wait()
    def alert(self, title, text, level, step):
        self.write("alert", step, title, text, level)
    def log_artifact(self, path, name, type, aliases):
        self.write("artifact", aliases[0], sorted(os.listdir(path)))
    def finish(self):
        self.write("finish")

def init(project, name, config, embed):
    run = Run(name)
    run.write("config", config)
    return run
'''


class Trackers(FaultTest):
    def setUp(self):
        super().setUp()
        self.modules = self.folder / "modules"
        self.modules.mkdir()
        self.file = self.folder / "told"
        self.environment |= {"STANDIN_FILE": str(self.file), "PYTHONPATH": str(self.modules), "PYTHONDONTWRITEBYTECODE": "1",
                             "BIMETAL_PYTHON": sys.executable}

    def stand_in(self, wrong=""):
        (self.modules / "trackio.py").write_text(STANDIN)
        self.environment["STANDIN"] = wrong

    def tracked(self, *arguments, trackers='["trackio"]', **settings):
        return self.train(self.write_job(**settings), "--set", f"monitor.trackers={trackers}", *arguments)

    def told(self, kind):
        lines = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return [line[1:] for line in lines if line[0] == kind]

    def tracker_of(self, job):
        found = lambda: [pid for pid in self.processes() if b"bimetal.trackers" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        harness.wait_until(lambda: found() and self.told("log") or job.process.poll() is not None, "figures", job)
        return found()[0]

    def test_one_is_told_all(self):
        self.stand_in()
        job = self.tracked("--set", "monitor.tracker_checkpoints=true", train__epochs=30, train__evaluate=True, checkpoint__keep=100,
                           checkpoint__every_steps=0).done()
        self.assertRegex(job.out, r"(?m)^tracker trackio: checkpoints-\d+; look at it with: trackio show --project bimetal$")
        self.assertNotIn("monitor at", job.out)
        (config,), = self.told("config")
        self.assertEqual([config["train"]["epochs"], config["monitor"]["trackers"]], [30, ["trackio"]])
        steps = [step for step, _ in self.told("log")]
        self.assertEqual(steps, sorted(steps))
        figures = {}
        for step, values in self.told("log"):
            figures.setdefault(step, {}).update(values)
        last = figures[30 * 16]
        self.assertEqual(last["share/rank_0"] + last["share/rank_1"], 64)
        self.assertLessEqual({"loss", "images_per_s", "efficiency", "learning_rate", "test_accuracy", "test_loss"}, set(last))
        self.assertGreater(len([step for step, values in figures.items() if "loss" in values]), 2)
        self.assertTrue(self.told("artifact"))
        self.assertIn("state.json", self.told("artifact")[-1][1])
        self.assertEqual(len(self.told("finish")), 1)

    def test_secrets_of_addresses_are_not_told(self):
        self.stand_in()
        job = self.tracked("--set", "data.path=http://somebody:secret@127.0.0.1:1/data", train__epochs=1)
        job.wait()
        self.assertNotIn("secret", self.file.read_text() if self.file.exists() else "")

    def test_one_that_is_stopped(self):
        self.stand_in()
        job = self.tracked()
        os.kill(self.tracker_of(job), signal.SIGSTOP)
        self.wait_for_a_told_checkpoint(job)
        job.end()
        self.assertIn("note: the trackers do not end, and were stopped", job.out)

    def test_one_that_hangs(self):
        self.stand_in("hangs")
        job = self.tracked(train__epochs=10)
        self.assertIn("tracker trackio: it does not end", job.done().out)

    def test_one_that_is_killed(self):
        self.stand_in()
        job = self.tracked()
        os.kill(self.tracker_of(job), signal.SIGKILL)
        job.wait_for_output("the process of the trackers was killed by signal 9 (Killed); the job goes on without")
        self.wait_for_a_told_checkpoint(job)
        job.end()

    def test_rank_0_is_killed(self):
        self.stand_in()
        job = self.tracked()
        self.tracker_of(job)
        self.kill(job, 0)
        self.assertNotEqual(job.wait().status, 0)
        harness.wait_until(lambda: not self.processes(), "the end of all processes")

    def test_what_is_wrong_with_one_is_said(self):
        self.stand_in("raises")
        self.assertIn("note: tracker trackio has stopped: no more room for figures", self.tracked(train__epochs=5).done().out)
        (self.modules / "trackio.py").unlink()
        job = self.tracked(train__epochs=1).done()
        self.assertIn("note: tracker trackio: this Python has no package trackio: pip install trackio", job.out)
        self.assert_one_message(self.tracked(trackers='["weights"]'), harness.INVALID_ARGUMENT, "monitor.trackers", '"weights"')

    def test_trackio_by_default_where_it_is_installed(self):
        home = self.folder / "home"
        package = home / ".local" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "trackio"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(STANDIN)
        python = pathlib.Path("/usr/bin/python3")
        if not python.exists():
            self.skipTest("no Python of the system's")
        environment = {"HOME": str(home), "BIMETAL_PYTHON": str(python), "PYTHONUSERBASE": str(home / ".local")}
        job = self.train(self.write_job(train__epochs=2), environment=environment).done()
        self.assertIn("tracker trackio: ", job.out)
        self.train(self.write_job(train__epochs=1), "--set", "monitor.trackers=[]", environment=environment).done()
        self.assertEqual(len(self.told("init")), 1)

    def test_beyond_loopback_it_has_the_monitors_token(self):
        self.stand_in()
        token = harness.write_token(self.folder / "token")
        self.tracked("--monitor", f"{harness.own_address()}:0", "--token-file", token, train__epochs=10).done()
        self.assertTrue(self.told("log"))
        self.assertEqual(len(self.told("finish")), 1)


class WhatIsHandedOn(unittest.TestCase):
    def test_each_thing_once(self):
        sys.path.insert(0, str(harness.REPOSITORY / "python"))
        self.addCleanup(sys.path.remove, sys.path[0])
        package = types.ModuleType("bimetal")
        package.__path__ = [str(harness.REPOSITORY / "python" / "bimetal")]
        with unittest.mock.patch.dict(sys.modules, {"bimetal": package}):
            from bimetal.trackers import figures
        run = figures.Run()
        nothing = [None, None]
        history = {"points": {"step": [1, 3], "at": [10.0, 11.0], "loss": [2.0, 1.0], "samples_per_s": [5.0, 6.0], "efficiency": nothing,
                              "learning_rate": nothing, "loss_scale": nothing, "shares": [[3, 1], [2, 2]]},
                   "evaluations": [{"step": 2, "at": 10.5, "data": "test", "loss": 1.5, "metrics": {"accuracy": 0.5}}],
                   "events": [{"at": 10.2, "step": 1, "kind": "lost", "text": "lost: cpu on pc"}, {"at": 10.3, "step": 1, "kind": "phase", "text": "x"}]}
        self.assertEqual(run.take("history", history), [
            figures.Words(1, "lost", "lost: cpu on pc", "warn"),
            figures.Figures(1, 10.0, {"loss": 2.0, "samples_per_s": 5.0, "share/rank_0": 3.0, "share/rank_1": 1.0}),
            figures.Figures(2, 10.5, {"test_loss": 1.5, "test_accuracy": 0.5}),
            figures.Figures(3, 11.0, {"loss": 1.0, "samples_per_s": 6.0, "share/rank_0": 2.0, "share/rank_1": 2.0})])
        self.assertEqual(run.take("history", history), [], "after a connection that was lost")
        history["events"].append({"at": 12.0, "step": 3, "kind": "notice", "text": "n"})
        self.assertEqual(run.take("news", {"events": history["events"]}), [figures.Words(3, "notice", "n", "info")])


READ = '''
import json, os, sys
answer = {}
import trackio
from trackio.sqlite_storage import SQLiteStorage
run, = SQLiteStorage.get_runs("bimetal")
answer["trackio"] = [(row["step"], row) for row in SQLiteStorage.get_logs("bimetal", run)]
import mlflow
client = mlflow.MlflowClient()
run, = client.search_runs([client.get_experiment_by_name("bimetal").experiment_id])
points = {}
for name in run.data.metrics:
    for one in client.get_metric_history(run.info.run_id, name):
        points.setdefault(one.step, {})[name] = one.value
answer["mlflow"] = sorted(points.items())
answer["mlflow_run"] = [run.info.status, run.data.params["train.epochs"], [a.path for a in client.list_artifacts(run.info.run_id, "checkpoints")]]
import glob, struct
from wandb.proto import wandb_internal_pb2
def records(data):
    """As in LevelDB's log: blocks of 32 KiB with pieces of records, each behind its checksum, length and kind; 7 bytes before all."""
    whole, at = b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""
file, = glob.glob("checkpoints/wandb/offline-run-*/run-*.wandb")
rows = []
for data in records(open(file, "rb").read()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "history":
        row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        rows.append((row["_step"], row))
answer["wandb"] = rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("checkpoints/tensorboard").Reload()
points = {}
for tag in events.Tags()["scalars"]:
    for event in events.Scalars(tag):
        points.setdefault(event.step, {})[tag] = event.value
answer["tensorboard"] = sorted(points.items())
print(json.dumps(answer))
'''


class RealTrackers(FaultTest):
    """Each one's own package, without a network; read back by itself."""

    def test_all_have_the_same_job(self):
        names = ("trackio", "wandb", "mlflow", "tensorboard")
        if subprocess.run([PYTHON, "-c", f"import {', '.join(names)}"], capture_output=True, check=False).returncode:
            self.skipTest("trackio, wandb, mlflow and tensorboard are not all installed (scripts/test_trackers.sh)")
        self.environment |= {"BIMETAL_PYTHON": PYTHON, "HOME": str(self.folder / "home"), "TRACKIO_DIR": str(self.folder / "trackio")}
        for name in [name for name in self.environment if name.startswith(("WANDB_", "MLFLOW_"))]:
            del self.environment[name]
        job = self.train(self.write_job(train__evaluate=True, checkpoint__every_steps=0, checkpoint__keep=1000), "--set",
                         f"monitor.trackers={json.dumps(names)}", "--set", "monitor.tracker_checkpoints=true")
        for name in names[:3]:
            job.wait_for_output(f"tracker {name}: ")
        time.sleep(2)
        job.end()
        steps = int(re.search(r"stopped after (\d+) steps", job.out)[1])
        self.assert_no_more_than_a_service_left()
        self.assertNotIn("tracker", "\n".join(line for line in job.out.splitlines() if "note:" in line))
        read = subprocess.run([PYTHON, "-c", READ], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        self.assertEqual(read.returncode, 0, read.stderr)
        answer = json.loads(read.stdout.splitlines()[-1])
        last = {}
        for name in names:
            figures = {}
            for step, values in answer[name]:
                figures.setdefault(step, {}).update(values)
            self.assertIn(steps, figures, name)
            evaluated = max(step for step, values in figures.items() if "test_accuracy" in values)
            last[name] = figures[evaluated] | figures[steps] | {"evaluated": evaluated}
        for figure in ("loss", "evaluated", "test_accuracy", "test_loss", "share/rank_0"):
            for name in names:
                self.assertAlmostEqual(last[name][figure], last["mlflow"][figure], 5, (name, figure))
        self.assertEqual(answer["mlflow_run"][:2], ["KILLED", "1000000"])
        self.assertIn(f"checkpoints/step-{steps:08d}", answer["mlflow_run"][2])

    def assert_no_more_than_a_service_left(self):
        """A tracker's own processes may take a moment to see that it is gone."""
        harness.wait_until(lambda: not self.processes(), "the end of all processes")


if __name__ == "__main__":
    harness.main()
