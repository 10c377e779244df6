"""bimetal.ray.Trainer on a real cluster: job files, train loops, unequal workers, what is missing or busy."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

import clusters

if not clusters.WHY_NOT:
    import ray
    import torch
    from ray.util.placement_group import placement_group_table

    import bimetal
    import bimetal.ray
    from bimetal.ray.attempt import Attempt

FAST = {"num_cpus": 1, "fast": 1, "worker": "cpu:threads=1"}
SLOW = {"num_cpus": 1, "slow": 1, "worker": "cpu:threads=1,speed=0.34"}


def balanced_loop(config):
    """torch's DDP with bimetal's sampler and hook, as docs/python.md shows it."""
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    assert bimetal.device().type == "cpu"
    torch.manual_seed(1)
    inputs = torch.randn(256, 20, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    model = DistributedDataParallel(nn.Linear(20, 1, dtype=torch.float64))
    sampler = bimetal.BalancedBatchSampler(256, global_batch=64, balance="fixed", weights=config["weights"])
    model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in sampler:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    bimetal.ray.report({"weight": model.module.weight.detach().double().norm(), "samples": len(batch),
                        "backend": dist.get_backend(), "ranks": dist.get_world_size(),
                        "threads": torch.get_num_threads()})


def printing_loop():
    rank = torch.distributed.get_rank()
    print(f"hello from {rank}")
    print("10 %\r20 %", file=sys.stderr)
    print("unfinished", end="")


def wrong_loop():
    if torch.distributed.get_rank() == 1:
        raise ValueError("the answer is not 42")
    torch.distributed.barrier()


class OnACluster(clusters.OnCluster):
    OFFERED = ({"fast": 1}, {"slow": 1})

    @classmethod
    def setUpClass(cls):
        cls.tokens = []
        make = Attempt.make_token

        def remembered():
            cls.tokens.append(make())
            return cls.tokens[-1]

        Attempt.make_token = staticmethod(remembered)
        super().setUpClass()

    def fit(self, *arguments, **options):
        events = []
        return bimetal.ray.Trainer(*arguments, on_event=events.append, **options).fit(), events

    def test_checkpoints_that_come_through_ray_are_the_newest_of_their_folder(self):
        """In their own folder they count from one; here a longer job has left some, by a clock that was ahead."""
        storage = clusters.TEMPORARY / "brought"
        options = {"storage": storage, "storage_shared": False}
        self.fit(clusters.job("long.toml", steps=48), [FAST], **options)
        longer = sorted(path.name for path in storage.iterdir())
        self.assertEqual(longer, ["step-00000032", "step-00000048"])
        for name in longer:
            os.utime(storage / name, (time.time() + 24 * 3600,) * 2)
        shorter, _ = self.fit(clusters.job("short.toml", steps=8), [FAST], **options)
        self.assertEqual(shorter.checkpoint.name, "step-00000008")
        self.assertEqual(sorted(path.name for path in storage.iterdir()), ["step-00000008", "step-00000048"])
        further, _ = self.fit(clusters.job("further.toml", steps=12), [FAST], resume=storage, **options)
        self.assertEqual(further.metrics["steps"], 12, "it has gone on from the longer job")
        self.assertEqual(further.checkpoint.name, "step-00000012")

    def test_a_job_file_on_unequal_workers(self):
        commands = []

        def note(event):
            events.append(event)
            if event.kind == "progress":
                commands.append("".join(clusters.command_lines().values()))
            if event.kind == "line" and (link := re.search(r"page at (http://\S+) \(a link", event.text)):
                pages.append(urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(link[1], timeout=60).read())

        events, pages = [], []
        storage = clusters.TEMPORARY / "kept"
        result = bimetal.ray.Trainer(clusters.job(steps=60), [FAST, SLOW], storage=storage, on_event=note,
                                     settings={"train.evaluate": True, "monitor.page": "on"}).fit()
        page, = pages
        self.assertIn(b"<title>Bimetal", page)
        self.assertEqual((result.metrics["steps"], result.metrics["world_size"]), (60, 2))
        self.assertEqual([worker["rank"] for worker in result.workers], [0, 1])
        self.assertGreater(result.workers[0]["share"], 1.3 * result.workers[1]["share"])
        self.assertEqual(result.workers[1]["worker"], SLOW["worker"])
        self.assertTrue((result.checkpoint / "model.safetensors").is_file())
        self.assertEqual(result.checkpoint.parent, storage)
        self.assertEqual(result.restarts, [])
        progress = [event.metrics for event in events if event.kind == "progress"]
        self.assertEqual(progress[0]["steps"], 60)
        self.assertEqual(sum(progress[-1]["shares"]), 64)
        self.assertTrue(any(event.kind == "evaluated" and 0 <= event.metrics["accuracy"] <= 1 for event in events))
        self.assertTrue(any(event.kind == "line" and "trained 60 steps" in event.text for event in events))
        for token in self.tokens:
            self.assertFalse(any(token in command for command in commands))

    def test_a_train_loop_with_unequal_batches(self):
        workers = [{"fast": 1, "num_cpus": 1}, {"slow": 1, "num_cpus": 1}]
        result, events = self.fit(balanced_loop, workers, config={"weights": [3, 1]})
        self.assertEqual([worker["metrics"]["samples"] for worker in result.workers], [48, 16])
        self.assertEqual({worker["metrics"]["backend"] for worker in result.workers}, {"bimetal"})
        self.assertEqual([worker["metrics"]["threads"] for worker in result.workers], [1, 1])
        alone, _ = self.fit(balanced_loop, workers[:1], config={"weights": [1]})
        self.assertAlmostEqual(result.metrics["weight"], alone.metrics["weight"], delta=1e-12)
        self.assertEqual([event.rank for event in events if event.kind == "report" and event.rank == 0], [0])

    def test_what_a_train_loop_prints_comes_as_lines(self):
        _, events = self.fit(printing_loop, [{"fast": 1}, {"slow": 1}])
        for rank in (0, 1):
            said = [event.text for event in events if event.kind == "line" and event.rank == rank]
            self.assertEqual(sorted(said), sorted([f"hello from {rank}", "20 %", "unfinished"]))

    def test_a_driver_shows_rank_0s_lines_and_none_of_rays(self):
        program = ("import bimetal.ray; bimetal.ray.Trainer(lambda: print('hello'), "
                   "[{'fast': 1}, {'slow': 1}]).fit()")
        shown = subprocess.run([sys.executable, "-c", program], env={**os.environ, "RAY_ADDRESS": self.cluster.address},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=True)
        self.assertEqual(re.findall(".*hello.*", shown.stdout), ["hello"], shown.stdout)
        self.assertNotRegex(shown.stdout, r"pid=|\(raylet\)|INFO")

    def test_resources_that_no_node_offers(self):
        began = time.monotonic()
        for workers, word in (([{"mps": 1}], "no node offers 'mps'"),
                              ([FAST, FAST], "2 × 'fast' are asked for in all, of 1"),
                              ([{"num_cpus": 64}], "more than 1 × 'CPU'"),
                              ([{"num_cpus": 1, "labels": {"os": "Amiga"}}], "no node has such labels")):
            self.assertIn("fast 1", self.refused("unsupported", word, clusters.job(), workers))  # what there is instead
        self.assertLess(time.monotonic() - began, 10)

    def test_resources_in_use(self):
        @ray.remote(num_cpus=0, resources={"fast": 1})
        class Holder:
            def ready(self):
                return True

        holder = Holder.remote()
        ray.get(holder.ready.remote(), timeout=clusters.PATIENCE_S)
        try:
            self.refused("timeout", r"others still use them after 3 s.*free are CPU 2", clusters.job(), [FAST], resource_timeout=3)
        finally:
            ray.kill(holder)

    def test_ctrl_c_twice_keeps_no_resources(self):
        seen = []

        def interrupt(event):
            if event.text.startswith("bimetal.ray: stopping") or event.kind == "progress" and not seen:
                seen.append(event)
                signal.raise_signal(signal.SIGINT)

        self.interrupted(interrupt, [FAST, SLOW])
        self.assertEqual(len(seen), 2)

    def interrupted(self, on_event, workers):
        """Ctrl-C ends this job, and leaves no placement group."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with self.assertRaises(KeyboardInterrupt):
                bimetal.ray.Trainer(clusters.job("interrupted.toml", steps=1_000_000), workers, resource_timeout=30,
                                    on_event=on_event).fit()
        finally:
            signal.signal(signal.SIGINT, before)
        clusters.until(lambda: {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}, 20,
                       "the end of all placement groups")

    def test_a_wrong_key_is_said_once_and_before_anything_starts(self):
        from ray._private.state import actors

        before = len(actors())
        for settings, word in (({"train.epochs": "many"}, "expected a whole number"), ({"train.epoch": 1}, "train.epoch")):
            events = []
            said = self.refused("invalid_argument", word, clusters.job(), [FAST], settings=settings, on_event=events.append)
            self.assertEqual(said.count(word), 1, said)
            self.assertEqual(events, [])
        self.assertEqual(len(actors()), before)

    def test_errors_of_the_program_are_not_tried_again(self):
        with self.assertRaises(bimetal.Error) as failed:
            self.fit(wrong_loop, [{"fast": 1}, {"slow": 1}])
        self.assertEqual(failed.exception.rank, 1)
        self.assertRegex(str(failed.exception), r"rank 1 .*ValueError: the answer is not 42")
        self.assertIn("in wrong_loop", str(failed.exception))
        self.refused("unsupported", "cuda", clusters.job(), [{**FAST, "worker": "cuda:0"}])

    def test_z_nothing_is_left(self):  # the last one
        clusters.until(lambda: not clusters.processes(clusters.RANKS), 20, "the end of all ranks")
        self.assertEqual(list(pathlib.Path("/tmp").glob("*bimetal-ray-*")), [])
        self.assertGreater(len(self.tokens), 4)
        secrets = re.compile("|".join([*self.tokens, clusters.RAY_TOKEN]).encode())
        logs = [path for path in (clusters.TEMPORARY / "ray").rglob("*") if path.is_file() and "logs" in path.parts]
        self.assertTrue(logs)
        self.assertEqual([str(path) for path in logs if secrets.search(path.read_bytes())], [])
        until_free = clusters.until(lambda: ray.available_resources().get("CPU") == 2, 20, "all resources free")
        self.assertTrue(until_free, json.dumps(ray.available_resources()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
