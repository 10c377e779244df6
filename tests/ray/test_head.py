"""The head node's end, in good order and by SIGKILL: jobs save and say so, drivers and joined nodes leave with it."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import unittest

import clusters
from commands import CPU_AND_MEMORY, Commands
from harness import free_port

PEER_LOST, ABORTED = 5, 6
SLOW = "cpu:threads=1,speed=0.2"
ON_BOTH = [{"cpu": 1, "labels": {"room": "cellar"}, "worker": SLOW}, {"d": 1, "worker": SLOW}]
JOINED_ALONE = [{"d": 1, "worker": SLOW}]
HELD = """
import sys
import bimetal.ray, ray
ray.init(address="auto", logging_level="ERROR")
print("" if ray.available_resources().get(sys.argv[1], 0.0) else "held")
"""
# A sitecustomize.py that keeps Ray's workers from starting, for as long as their node runs.
NEVER_UP = """
import os, sys, time
parent = os.getppid()
while any(part.endswith("default_worker.py") for part in sys.orig_argv) and os.getppid() == parent:
    time.sleep(0.1)
"""
DRIVER = """
import json, pathlib, sys, time
import bimetal, bimetal.ray

def loop(config):
    folder = pathlib.Path(config["folder"])
    folder.mkdir(exist_ok=True)
    for count in range(100_000):
        time.sleep(0.2)
        (folder / "state.json").write_text(json.dumps({"count": count}))
        bimetal.ray.report({"count": count}, checkpoint_dir=folder)

def tell(event):
    print(json.dumps({"kind": event.kind, "text": event.text, "metrics": event.metrics}), flush=True)

target, workers, options = json.loads(sys.argv[1])
try:
    bimetal.ray.Trainer(target or loop, workers, on_event=tell, **options).fit()
except bimetal.Error as over:
    print(json.dumps({"kind": "over", "text": str(over), "code": over.code}), flush=True)
"""


@unittest.skipIf(clusters.WHY_NOT, clusters.WHY_NOT)
class HeadNode(Commands):
    def setUp(self):
        super().setUp()
        self.environment["TMPDIR"] = str(self.home)
        self.port = str(free_port())
        self.head, _ = self.node("up", "--port", self.port, "--labels", "room=cellar")
        self.joined, _ = self.node("join", f"127.0.0.2:{self.port}", "--resources", '{"d": 1}')
        self.kept = self.home / "kept"

    def begin(self, target, workers, **options):
        """A driver, with the iterator over its events."""
        asked = json.dumps([str(target) if target else None, workers, {"storage": str(self.kept), **options}])
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, asked], stdout=subprocess.PIPE, text=True,
                                  env={**self.environment, "RAY_ADDRESS": f"127.0.0.2:{self.port}"})
        self.addCleanup(driver.stdout.close)
        self.addCleanup(self.kill, driver)
        return driver, map(json.loads, iter(driver.stdout.readline, ""))

    def drive(self, target, workers, **options):
        """A driver that trains without end; returns once it does, with the iterator over its events."""
        driver, events = self.begin(target, workers, **options)
        for event in events:
            if event["metrics"].get("step", 0) >= 10 or event["metrics"].get("count", 0) >= 5:
                return driver, events
        self.fail(f"it has ended with {driver.wait()}")

    def setting_aside(self, tag):
        """Whether a node's resource is set aside, as the head node has it."""
        found = self.run_python("-c", HELD, tag, RAY_ADDRESS=f"127.0.0.2:{self.port}")
        return found.stdout.strip() == "held"

    def last_words(self, driver, events):
        """For a driver that ends by itself: all of its reports since, the last of which is the cause."""
        told = list(events)
        self.assertEqual(driver.wait(clusters.PATIENCE_S), 0, told)
        self.assertEqual(told[-1]["kind"], "over", told)
        return told

    def assert_saved(self, driver, events):
        """The job has been told, has saved and has ended with its reason; returns the checkpoint's name."""
        told = self.last_words(driver, events)
        self.assertEqual(told[-1]["code"], "aborted")
        self.assertRegex(told[-1]["text"], rf"^the cluster was ended at its head node, 127.0.0.2:{self.port}\n"
                                           rf"  Last checkpoint: {self.kept}/\S+; go on with resume=")
        self.assertIn(f"bimetal.ray: the cluster was ended at its head node, 127.0.0.2:{self.port}",
                      [event["text"] for event in told if event["kind"] == "notice"])
        name = max(path.name for path in self.kept.iterdir() if path.is_dir())
        self.assertIn(f"/{name};", told[-1]["text"])
        steps = [event["metrics"]["step"] for event in told if "step" in event.get("metrics", {})]
        if steps:
            self.assertEqual(name, f"step-{steps[-1]:08}", "not a step is lost")
        return name

    def assert_both_left(self):
        for node in (self.head, self.joined):
            self.assertEqual(node.wait(clusters.PATIENCE_S), 0, self.said(node))
        self.assertIn("this node ends: the cluster was ended at its head node", self.said(self.joined))
        self.await_end()
        self.assertEqual(list(self.home.glob("*bimetal-*")), [], "folders of ranks")

    def test_a_job_on_both_nodes_saves_and_ends(self):
        driver, events = self.drive(clusters.job("both.toml", steps=1_000_000), ON_BOTH)
        self.head.send_signal(signal.SIGINT)
        self.assert_saved(driver, events)
        self.assertIn("this node ends: the cluster ends with it; jobs may save and leave", self.said(self.head))
        self.assert_both_left()

    def test_a_train_loop_ends_at_its_next_checkpoint(self):
        driver, events = self.drive(None, JOINED_ALONE, config={"folder": str(self.home / "loop")})
        # Its terminal is closed; under nohup that would be nothing to it.
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.head.send_signal(signal.SIGTERM if nohup else signal.SIGHUP)
        self.assert_saved(driver, events)
        self.assert_both_left()

    def test_without_jobs_all_nodes_leave(self):
        self.end(self.head)
        self.assert_both_left()

    def test_a_driver_that_waits_for_resources_names_its_checkpoint(self):
        job = clusters.job("waits.toml", steps=1_000_000, **{"checkpoint.every_steps": 5})
        driver, events = self.drive(job, JOINED_ALONE, resource_timeout=600)
        left = self.joined
        self.joined, _ = self.node("join", f"127.0.0.2:{self.port}", "--resources", '{"d": 1}')
        self.drive(job, JOINED_ALONE, storage=str(self.home / "others"))
        self.end(left)
        self.assertTrue(any("for resources that others use" in event["text"] for event in events))
        self.head.send_signal(signal.SIGINT)
        over = self.last_words(driver, events)[-1]
        self.assertEqual(over["code"], "aborted")
        self.assertRegex(over["text"], r"^the cluster was ended at its head node, .*\n"
                                       r"  Last checkpoint: \S+; go on with resume=")
        self.assert_both_left()

    def test_a_driver_whose_workers_have_not_started_ends_with_the_cluster(self):
        (self.home / "slow").mkdir()
        (self.home / "slow" / "sitecustomize.py").write_text(NEVER_UP)
        usual = self.environment
        self.environment = {**usual, "PYTHONPATH": os.pathsep.join([str(self.home / "slow"), usual["PYTHONPATH"]])}
        self.node("join", f"127.0.0.2:{self.port}", "--resources", '{"e": 1}')
        self.environment = usual
        driver, events = self.begin(clusters.job("starts.toml"), [{"e": 1, "worker": SLOW}])
        clusters.until(lambda: driver.poll() is not None or self.setting_aside("e"), what="the try's beginning")
        self.head.send_signal(signal.SIGINT)
        over = self.last_words(driver, events)[-1]
        self.assertEqual(over["code"], "aborted", over)
        self.assert_both_left()

    def test_a_node_whose_terminal_is_gone_ends_in_good_order(self):
        terminal, its_end = pty.openpty()
        node = subprocess.Popen([sys.executable, "-m", "bimetal.ray", "join", f"127.0.0.2:{self.port}",
                                 *CPU_AND_MEMORY], stdin=its_end, stdout=its_end, stderr=its_end,
                                env=self.environment, start_new_session=True)
        self.addCleanup(self.kill, node)
        os.close(its_end)
        said = b""
        while b"Ctrl-C ends this node\r\n" not in said:
            said += os.read(terminal, 4096)
        os.close(terminal)
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        node.send_signal(signal.SIGTERM if nohup else signal.SIGHUP)
        self.assertEqual(node.wait(clusters.PATIENCE_S), 0)
        self.end(self.head)
        self.assert_both_left()

    def test_a_killed_head_node_is_said_by_all(self):
        """As when its machine loses power: nobody is left there to say anything."""
        import psutil

        driver, events = self.drive(clusters.job("killed.toml", steps=1_000_000, **{"checkpoint.every_steps": 5}),
                                    JOINED_ALONE)
        for process in [*psutil.Process(self.head.pid).children(recursive=True), self.head]:
            process.kill()
        self.assert_gone(driver, events)

    def test_ray_stop_on_the_head_node_is_its_end_without_a_word(self):
        """It sends SIGTERM to all of Ray's processes that it finds on the machine, which here are other nodes', too."""
        import psutil

        driver, events = self.drive(clusters.job("stopped.toml", steps=1_000_000, **{"checkpoint.every_steps": 5}),
                                    JOINED_ALONE)
        for process in psutil.Process(self.head.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended, of which some are not yet awaited
                if any(name in " ".join(process.cmdline()) for name in ("raylet", "gcs_server", "ray::")):
                    process.terminate()
        self.assert_gone(driver, events)
        self.head.wait(clusters.PATIENCE_S)  # Ray itself calls it a failure if one of its helpers does not like SIGTERM
        self.assertRegex(self.said(self.head), "Ray was ended on this machine|the Ray node has ended with status")

    def assert_gone(self, driver, events):
        over = self.last_words(driver, events)[-1]
        self.assertEqual(over["code"], "peer_lost")
        self.assertRegex(over["text"], rf"^the cluster's head node, 127.0.0.2:{self.port}, is gone: .*\n"
                                       r"  Last checkpoint: \S+; go on with resume=")
        self.assertEqual(self.joined.wait(clusters.PATIENCE_S), PEER_LOST, self.said(self.joined))
        self.assertIn(f"error: the cluster's head node, 127.0.0.2:{self.port}, is gone", self.said(self.joined))
        self.await_end()

    def test_a_search_ends_with_the_cluster(self):
        job = clusters.job("search.toml", steps=1_000_000, evaluate=True)
        search = subprocess.Popen(
            [sys.executable, "-m", "bimetal.tune", str(job), "--grid", "train.learning_rate=0.01,0.02,0.03",
             "--ray"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**self.environment, "RAY_ADDRESS": f"127.0.0.2:{self.port}"})
        self.addCleanup(search.stderr.close)
        self.addCleanup(self.kill, search)
        clusters.until(lambda: search.poll() is not None or clusters.trials(), what="a trial")
        if search.poll() is not None:
            self.fail(search.stderr.read())
        self.head.send_signal(signal.SIGINT)
        self.assertEqual(search.wait(clusters.PATIENCE_S), ABORTED)
        self.assertIn("the cluster was ended at its head node", search.stderr.read())
        self.assert_both_left()


def tearDownModule():
    clusters.remove_temporary()


if __name__ == "__main__":
    unittest.main(verbosity=2)
