"""Workers, nodes and drivers that are killed: the job goes on from its last checkpoint, or leaves nothing."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

import clusters

if not clusters.WHY_NOT:
    import ray
    import torch

    import bimetal
    import bimetal.ray


def counting_loop(config):
    """Counts, to ten unless told otherwise; rank 1 kills its own process at ``die_at``, the first time."""
    import torch.distributed as dist

    count = 0
    if (found := bimetal.ray.get_checkpoint()) is not None:
        count = json.loads((found / "state.json").read_text())["count"]
    bimetal.ray.report({"begins_with": count})
    folder = pathlib.Path(config["folder"], str(dist.get_rank()))
    folder.mkdir(parents=True, exist_ok=True)
    while count < config.get("until", 10):
        time.sleep(config.get("pause", 0))
        one = torch.ones(1)
        dist.all_reduce(one)
        assert one.item() == dist.get_world_size()
        count += 1
        (folder / "state.json").write_text(json.dumps({"count": count}))
        bimetal.ray.report({"count": count}, checkpoint_dir=folder)
        if count == config["die_at"] and dist.get_rank() == 1 and not os.path.exists(config["folder"] + "/died"):
            pathlib.Path(config["folder"], "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Failures(clusters.OnCluster):
    OFFERED = ({"a": 1}, {"b": 1}, {"c": 1})

    def test_1_a_worker_of_a_train_loop_is_killed(self):
        for shared in (True, False):  # the folder is seen by all, or files go through Ray
            with self.subTest(shared=shared):
                config = {"folder": str(clusters.TEMPORARY / f"loop_{shared}"), "die_at": 5}
                storage = clusters.TEMPORARY / f"loops_{shared}"
                older = storage / "checkpoint_000003"  # of an earlier run, before the clock was set back
                older.mkdir(parents=True)
                os.utime(older, (time.time() + 24 * 3600,) * 2)
                result = bimetal.ray.Trainer(counting_loop, ["a", "b"], config=config, storage_shared=shared,
                                             storage=storage,
                                             on_event=lambda event: None).fit()
                self.assertEqual(len(result.restarts), 1)
                restart = result.restarts[0]
                self.assertRegex(restart.cause, r"rank 1 \(cpu on .*\) was lost")
                begins = [metrics["begins_with"] for metrics in result.history if "begins_with" in metrics]
                self.assertEqual(len(begins), 2)
                # Files that were on their way through Ray when the worker died may be lost.
                self.assertIn(begins[1], range(4 if shared else 1, 7))
                self.assertEqual(result.metrics, {"count": 10})
                self.assertEqual(json.loads((result.checkpoint / "state.json").read_text()), {"count": 10})
                names = sorted(path.name for path in storage.iterdir())
                self.assertEqual(len(names), 2, names)  # older ones are gone, and nothing half-copied is left
                self.assertEqual(names[-1], result.checkpoint.name)
                self.assertNotIn(older.name, names)
                print(f"running again after {restart.seconds:.1f} s", file=sys.stderr)

    def test_2_failures_are_counted(self):
        def always(config):
            with open(config["log"], "a") as log:
                log.write("x")
            os.kill(os.getpid(), signal.SIGKILL)

        log = clusters.TEMPORARY / "tries"
        with self.assertRaises(bimetal.Error) as failed:
            bimetal.ray.Trainer(always, ["a"], max_failures=1, config={"log": str(log)},
                                on_event=lambda event: None).fit()
        self.assertEqual(log.read_text(), "xx")
        self.assertEqual((failed.exception.code, failed.exception.rank), ("peer_lost", 0))
        self.assertIn("survived 1 failures", str(failed.exception))

    def test_3_a_killed_driver_leaves_nothing(self):
        job = clusters.job("long.toml", steps=1_000_000)
        program = (f"import bimetal.ray; bimetal.ray.Trainer({str(job)!r}, ['a', 'b'], "
                   "on_event=lambda event: print(event.kind, flush=True)).fit()")
        environment = {**os.environ, "RAY_ADDRESS": self.cluster.address}
        driver = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            lines = iter(driver.stdout.readline, "")
            self.assertTrue(any(line.strip() == "progress" for line in lines))
            self.assertEqual(len(clusters.processes(clusters.RANKS)), 2)
        finally:
            driver.kill()
            driver.wait()
            driver.stdout.close()
        clusters.until(lambda: not clusters.processes(clusters.RANKS), 30, "the end of the ranks")

    def test_4_ctrl_c_saves_a_checkpoint(self):
        job = clusters.job("stopped.toml", steps=1_000_000, dir=str(clusters.TEMPORARY / "stopped"))
        told = []

        def interrupt_once(event):
            told.append(event)
            if event.kind == "progress" and not any(event.text.startswith("bimetal.ray: stopping") for event in told):
                signal.raise_signal(signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            result = bimetal.ray.Trainer(job, ["a", "b"], on_event=interrupt_once).fit()
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertTrue(result.metrics["interrupted"])
        self.assertTrue((result.checkpoint / "state.json").is_file())

    def end_in_order(self, target, ready, **options):
        """Runs ``target`` on a node that gets SIGTERM at the first event that is ``ready``, and on another."""
        node = clusters.joined(self, self.cluster, "d")
        events, ended = [], []

        def wait():
            began = time.monotonic()
            node.wait()
            ended.append(time.monotonic() - began)

        waiting = threading.Thread(target=wait)

        def end_when_ready(event):
            events.append(event)
            if ready(event) and waiting.ident is None:
                node.send_signal(signal.SIGTERM)
                waiting.start()

        workers = [{"d": 1, "worker": "cpu:threads=1,speed=0.2"}, {"b": 1, "worker": "cpu:threads=1,speed=0.2"}]
        result = bimetal.ray.Trainer(target, workers, min_workers=1, max_failures=0, storage_shared=False,
                                     on_event=end_when_ready, **options).fit()
        waiting.join(30)
        self.assertEqual((len(ended), node.returncode), (1, 0))
        print(f"the node has ended after {ended[0]:.1f} s", file=sys.stderr)
        self.assertEqual([restart.workers for restart in result.restarts], [1])
        self.assertRegex(result.restarts[0].cause, r"rank 0 \(.*\) has left: its node was ended")
        self.assertTrue(any("its node is being ended" in event.text for event in events))
        return result, events

    def test_4b_a_node_is_ended_in_good_order(self):
        """Not a step is computed twice though the job saves none by itself before its end, and no failure is counted."""
        job = clusters.job("order.toml", steps=150)
        result, events = self.end_in_order(job, lambda event: event.kind == "progress" and event.metrics["step"] >= 10,
                                           storage=clusters.TEMPORARY / "order")
        self.assertEqual((result.metrics["steps"], result.metrics["world_size"]), (150, 1))
        steps = [event.metrics["step"] for event in events if event.kind == "progress"]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertRegex(result.restarts[0].checkpoint.name, "^step-[0-9]*[1-9][0-9]*$")

    def test_5_a_node_is_killed_and_the_rest_goes_on(self):
        """The last, since it leaves a node fewer. Files go through Ray, as between machines without a share."""
        job = clusters.job("node.toml", steps=150, **{"checkpoint.every_steps": 10})
        first = clusters.processes(clusters.RANKS)
        events, killers = [], []

        def kill_when_saved(event):
            events.append(event)
            if event.kind == "checkpoint" and not killers:
                killers.append(threading.Thread(target=self.cluster.remove_node, args=(self.nodes[0], False)))
                killers[0].start()  # SIGKILL for all of the node that rank 0 runs on

        # Slowed down, so that it is not through when its node dies.
        workers = [{"a": 1, "worker": "cpu:threads=1,speed=0.2"}, {"b": 1, "worker": "cpu:threads=1,speed=0.2"}]
        began = time.monotonic()
        result = bimetal.ray.Trainer(job, workers, min_workers=1, storage=clusters.TEMPORARY / "node",
                                     storage_shared=False, on_event=kill_when_saved).fit()
        killers[0].join(30)
        self.assertEqual(first, [])
        self.assertEqual([restart.workers for restart in result.restarts], [1])
        self.assertIsNotNone(result.restarts[0].checkpoint)
        self.assertLess(result.restarts[0].seconds, 30)
        self.assertEqual((result.metrics["steps"], result.metrics["world_size"]), (150, 1))
        steps = [event.metrics["step"] for event in events if event.kind == "progress"]
        again = next(index for index in range(1, len(steps)) if steps[index] < steps[index - 1]) \
            if sorted(steps) != steps else None
        if again is not None:
            self.assertGreaterEqual(steps[again], 10)  # not from the beginning
        print(f"running on one of two nodes after {result.restarts[0].seconds:.1f} s, all in "
              f"{time.monotonic() - began:.1f} s", file=sys.stderr)

        with self.assertRaises(bimetal.Error) as failed:  # what has gone is named, after a wait
            clusters.until(lambda: sum(node["Alive"] for node in ray.nodes()) == 3, 60, "Ray's notice of the loss")
            bimetal.ray.Trainer(job, ["a", "b"], on_event=lambda event: None).fit()
        self.assertIn("no node offers 'a'", str(failed.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
