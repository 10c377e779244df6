"""bimetal.ray.Trainer with parameter servers: workers and their nodes are killed and the job goes on, a server's end
restarts it, and nothing is left."""

import os
import pathlib
import signal
import unittest

import clusters

if not clusters.WHY_NOT:
    import ray

    import bimetal
    import bimetal.ray

SLOW = "cpu:threads=1,speed=0.2"


class Servers(clusters.OnCluster):
    OFFERED = ({"a": 1}, {"b": 1}, {"c": 1})

    def job(self, name, **keys):
        path = clusters.job(name, **keys)
        path.write_text(path.read_text().replace("[parallel]", '[parallel]\nmode = "server"'))
        return path

    def server_processes(self):
        return [pid for pid in clusters.processes(clusters.RANKS)
                if b"BIMETAL_SERVER=" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()]

    def test_1_trains_to_the_end(self):
        events = []
        job = self.job("served.toml", steps=60)
        result = bimetal.ray.Trainer(
            job, [{"a": 1, "worker": "cpu:threads=1"}, {"b": 1, "worker": "cpu:threads=1,speed=0.34"}],
            storage=clusters.TEMPORARY / "served", settings={"train.evaluate": True, "servers.count": 2},
            on_event=events.append).fit()
        self.assertEqual((result.metrics["steps"], result.metrics["world_size"]), (60, 2))
        self.assertEqual((result.metrics["server"]["servers"], result.metrics["server"]["updates"]), (2, 60))
        self.assertEqual([worker["rank"] for worker in result.workers], [0, 1])
        self.assertEqual(sum(worker["samples"] for worker in result.workers), 60 * 64)
        self.assertTrue((result.checkpoint / "model.safetensors").is_file())
        progress = [event.metrics for event in events if event.kind == "progress"]
        self.assertEqual(progress[0]["steps"], 60)
        self.assertTrue(any(event.kind == "evaluated" and 0 <= event.metrics["accuracy"] <= 1 for event in events))
        self.assertTrue(any(event.kind == "line" and event.rank is None and "trained 60 steps" in event.text
                            for event in events))
        alone = bimetal.ray.Trainer(job, ["a"], settings={"parallel.mode": "all_reduce"},
                                    on_event=lambda event: None).fit()
        self.assertAlmostEqual(result.metrics["train_loss"], alone.metrics["train_loss"], delta=1e-11)

    def test_2_what_cannot_work_is_said(self):
        job = self.job("wrong.toml")
        for arguments, code, words in (
                ({"servers": [{"z": 1}]}, "unsupported", "server .*no node offers 'z'"),
                ({"servers": ["a", "b"], "settings": {"servers.count": 3}}, "invalid_argument", "has 2 requests"),
                ({"servers": ["a"], "settings": {"parallel.mode": "all_reduce"}}, "invalid_argument", "parallel.mode"),
                ({"settings": {"train.epochs": "many"}}, "invalid_argument", "expected a whole number")):
            with self.subTest(words):
                self.refused(code, words, job, ["a", "b"], **arguments)

    def test_4_a_killed_server_restarts_the_job_from_its_checkpoint(self):
        events, killed = [], []

        def kill_when_saved(event):
            events.append(event)
            if event.kind == "checkpoint" and not killed:
                killed.extend(self.server_processes())
                os.kill(killed[-1], signal.SIGKILL)

        workers = [{"a": 1, "worker": SLOW}, {"b": 1, "worker": SLOW}]
        result = bimetal.ray.Trainer(self.job("restarted.toml", steps=80, **{"checkpoint.every_steps": 10}), workers,
                                     servers=["c"], storage=clusters.TEMPORARY / "restarted", storage_shared=False,
                                     on_event=kill_when_saved).fit()
        self.assertEqual(len(killed), 1)
        self.assertEqual([restart.workers for restart in result.restarts], [2])
        self.assertRegex(result.restarts[0].cause, r"parameter server 0 on .* was killed by signal 9")
        self.assertIsNotNone(result.restarts[0].checkpoint)
        self.assertEqual(result.metrics["steps"], 80)
        steps = [event.metrics["step"] for event in events if event.kind == "progress"]
        back = [step for before, step in zip(steps, steps[1:]) if step <= before]
        self.assertTrue(all(step > 10 for step in back), steps)  # not from the beginning

    def test_5_a_killed_worker_is_said_and_the_job_goes_on(self):
        events, killed = [], []

        def kill_one(event):
            events.append(event)
            if event.kind == "progress" and event.metrics["step"] > 10 and not killed:
                killed.append(next(pid for pid in clusters.processes(clusters.RANKS)
                                   if pid not in self.server_processes()))
                os.kill(killed[0], signal.SIGKILL)

        result = bimetal.ray.Trainer(self.job("lost.toml", steps=300),
                                     [{"a": 1, "worker": SLOW}, {"b": 1, "worker": SLOW}], on_event=kill_one).fit()
        self.assert_went_on(result, events, 300)

    def assert_went_on(self, result, events, steps):
        self.assertEqual(result.restarts, [])
        self.assertEqual(result.metrics["steps"], steps)
        states = [worker["state"] for worker in result.metrics["server"]["workers"]]
        self.assertEqual(sorted(states), ["here", "lost"])
        self.assertEqual(sum(worker["samples"] for worker in result.workers), steps * 64)
        self.assertLess(result.metrics["server"]["samples_repeated"], 2 * 64 + 1)
        done = [event.metrics["step"] for event in events if event.kind == "progress"]
        self.assertEqual(done, sorted(done))
        said = "\n".join(event.text for event in events if event.kind in ("line", "notice"))
        self.assertRegex(said, "worker [01] .* is lost: .*goes on without it")
        self.assertRegex(said, r"rank [01] \(cpu.*killed by signal 9.*goes on without it")

    def test_z_nothing_is_left(self):
        bimetal.ray.Trainer(self.job("next.toml", steps=2), ["a"], on_event=lambda event: None).fit()
        clusters.until(lambda: not clusters.processes(clusters.RANKS), 20, "the end of all ranks")
        # The next job removes what a killed node has left.
        self.assertEqual(list(pathlib.Path("/tmp").glob("*bimetal-ray-*")), [])
        clusters.until(lambda: ray.available_resources().get("a") == 1, 20, "all resources free")


if __name__ == "__main__":
    unittest.main(verbosity=2)
