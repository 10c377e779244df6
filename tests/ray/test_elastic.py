"""Elastic jobs on Ray: an actor is killed, the others stay, and a new one comes in its place."""

import os
import pathlib
import signal
import unittest

import clusters

if not clusters.WHY_NOT:
    import safetensors.torch
    import torch

    import bimetal
    import bimetal.ray

STEPS = 200  # of job files


def elastic_loop(config):
    """Three epochs of eight steps; the first worker kills itself in the tenth, and nobody goes on from there without a third one."""
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import bimetal.elastic

    torch.manual_seed(1)
    inputs = torch.randn(256, 20, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    model = nn.Linear(20, 1, dtype=torch.float64)
    sampler = bimetal.BalancedBatchSampler(256, global_batch=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = bimetal.elastic.State(model=model, optimizer=optimizer, sampler=sampler, used=torch.zeros(256), steps=0)
    killer = pathlib.Path(config["folder"], "killed")

    def train(state):
        bimetal.ray.report({"pid": os.getpid(), "ranks": dist.get_world_size(), "steps": state.steps})
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(sampler, bimetal.sample_exact_hook)
        for _ in range(sampler.next_epoch, 3):
            for batch in sampler:
                optimizer.zero_grad()
                nn.functional.mse_loss(ddp(inputs[batch]), targets[batch]).backward()
                if config["ranks"] > 1 and state.steps == 9 and dist.get_rank() == 0 and not killer.exists():
                    killer.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                used = torch.zeros(256)
                used[batch] = 1
                dist.all_reduce(used)
                state.used = state.used + used
                state.steps += 1
                state.commit()
                while state.steps == 12 and dist.get_world_size() < config["ranks"]:
                    state.commit()

    bimetal.elastic.run(train, state)
    bimetal.ray.report({"pid": os.getpid(), "weights": model.weight.flatten().tolist(), "used": state.used.unique().tolist()})


def ranks():
    """Processes of the job file's ranks: the id of each, and of its actor, by the rank that it was started as."""
    found = {}
    for pid in clusters.processes(clusters.RANKS):
        try:
            folder = pathlib.Path(f"/proc/{pid}")
            variables = dict(one.split("=", 1) for one in (folder / "environ").read_text().split("\0") if "=" in one)
            found[int(variables["RANK"])] = (pid, int((folder / "stat").read_text().rpartition(")")[2].split()[1]))
        except (OSError, KeyError):  # it ends just now
            continue
    return found


class Elastic(clusters.OnCluster):
    OFFERED = ({"a": 1}, {"b": 1}, {"c": 1})

    def fit_job(self, name, tags, act, least, steps, **options):
        """The result of a job file, and its events. ``act`` is called at each event that tells of a step."""
        events = []

        def on_event(event):
            events.append(event)
            if event.kind == "progress":
                act(events)

        workers = [{tag: 1, "worker": "cpu:threads=1,speed=0.2"} for tag in tags]
        trainer = bimetal.ray.Trainer(clusters.job(f"{name}.toml", steps), workers, storage=clusters.TEMPORARY / name,
                                      settings={"elastic.min_workers": least, "train.learning_rate": 0.002, **options.pop("settings", {})},
                                      on_event=on_event, **options)
        return trainer.fit(), events

    def parameters(self, result):
        return safetensors.torch.load_file(result.checkpoint / "model.safetensors")

    def test_a_job_file_keeps_its_workers(self):
        """The process of the rank that leads is killed, then the actor of another one. Files go through Ray."""
        seen = [{}]

        def kill(events):
            now = {rank: pids[0] for rank, pids in ranks().items()}
            if len(now) < 3 or now == seen[-1] or len(seen) > 3:
                return
            seen.append(now)
            victim = {2: now[0], 3: ranks()[2][1]}.get(len(seen))
            if victim:
                os.kill(victim, signal.SIGKILL)

        alone, _ = self.fit_job("alone", "a", lambda events: None, 0, STEPS)
        result, events = self.fit_job("elastic", "abc", kill, 3, STEPS, storage_shared=False)
        self.assertEqual(result.restarts, [])
        self.assertEqual([(change.what, change.rank) for change in result.changes],
                         [("lost", 0), ("came", 0), ("lost", 2), ("came", 2)])
        self.assertRegex(result.changes[0].text, r"rank 0 \(cpu.*\) was killed by signal 9")
        self.assertRegex(result.changes[2].text, r"rank 2 \(cpu.*\) was lost")
        print("new workers after", *(f"{change.seconds:.1f} s" for change in result.changes if change.what == "came"))
        self.assertEqual(len(seen), 4)
        for before, after, changed in (seen[1], seen[2], 0), (seen[2], seen[3], 2):
            self.assertEqual({rank for rank in before if before[rank] != after[rank]}, {changed})
        steps = [event.metrics["step"] for event in events if event.kind == "progress"]
        self.assertEqual(steps, sorted(steps), "nothing is begun anew")
        self.assertEqual({event.rank for event in events if event.kind == "progress"}, {0})
        self.assertEqual((result.metrics["steps"], result.metrics["world_size"]), (STEPS, 3))
        self.assertEqual([worker["rank"] for worker in result.workers], [0, 1, 2])
        self.assertGreater(sum(worker["share"] for worker in result.workers), 0.9)
        undisturbed = self.parameters(alone)
        for name, own in self.parameters(result).items():
            torch.testing.assert_close(own, undisturbed[name], rtol=1e-12, atol=1e-12)

    def test_b_failures_of_a_job_file_are_counted(self):
        """The first lost worker is replaced, and the second one is not."""
        killed = []

        def kill(events):
            pid = ranks().get(1, (None,))[0]
            if pid is not None and pid not in killed:
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

        with self.assertRaisesRegex(bimetal.Error, "1 of 2 members are there.*elastic.min_workers asks for 2"
                                    "(?s:.)*survived 1 failures, as many as max_failures= allows") as failed:
            self.fit_job("counted", "ab", kill, 2, 15_000, max_failures=1, settings={"elastic.patience_s": 20})
        self.assertEqual(failed.exception.code, "peer_lost")
        self.assertEqual(len(killed), 2)

    def test_c_one_leaves_and_the_others_are_stopped(self):
        asked = []

        def stop(events):
            if not asked:
                asked.append(ranks()[0][0])
                os.kill(asked[0], signal.SIGTERM)
            elif len(ranks()) == 2 and len(asked) == 1:
                asked.append(None)
                signal.raise_signal(signal.SIGINT)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            result, events = self.fit_job("stopped", "abc", stop, 1, 15_000, storage_shared=False)
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertEqual([(change.what, change.rank) for change in result.changes], [("left", 0)])
        self.assertEqual((result.metrics["interrupted"], result.metrics["world_size"]), (True, 2))
        self.assertLess({event.kind for event in events}, {"notice", "line", "progress", "checkpoint", "evaluated"})
        self.assertTrue((result.checkpoint / "model.safetensors").is_file())

    def test_d_a_worker_leaves_with_its_node(self):
        node = clusters.joined(self, self.cluster, "d")

        def end(events):
            if len(ranks()) == 3 and events[-1].metrics["step"] > 1:
                node.send_signal(signal.SIGTERM)

        result, _ = self.fit_job("left", "dab", end, 1, STEPS, max_failures=0, storage_shared=False)
        self.assertEqual(node.wait(30), 0)
        self.assertEqual((result.restarts, result.metrics["steps"], result.metrics["world_size"]), ([], STEPS, 2))
        self.assertEqual([(change.what, change.rank) for change in result.changes], [("left", 0)])
        self.assertIn("its node was ended", result.changes[0].text)
        self.assertEqual([worker["worker"] for worker in result.workers], ["cpu:threads=1,speed=0.2"] * 2)

    def test_a_train_loop_keeps_its_workers(self):
        def fit(workers, events):
            return bimetal.ray.Trainer(elastic_loop, workers, config={"folder": str(clusters.TEMPORARY), "ranks": len(workers)},
                                       on_event=events.append).fit()

        events = []
        alone = fit(["a"], events)
        result = fit(["a", "b", "c"], events)
        self.assertEqual(result.restarts, [])
        self.assertEqual([(change.what, change.rank) for change in result.changes], [("lost", 0), ("came", 0)])
        self.assertRegex(result.changes[0].text, r"rank 0 \(cpu on .*\) was lost")
        print(f"a new worker after {result.changes[1].seconds:.1f} s")
        self.assertTrue(any("the job goes on without it" in event.text for event in events))
        begun = [event.metrics for event in events if event.kind == "report" and "ranks" in event.metrics]
        first = {one["pid"] for one in begun if one["ranks"] == 3 and one["steps"] == 0}
        last = {worker["metrics"]["pid"] for worker in result.workers}
        self.assertEqual((len(first), len(last), len(first & last)), (3, 3, 2))
        for worker in result.workers:
            self.assertEqual(worker["metrics"]["used"], [3.0], "each sample once an epoch")
            for own, undisturbed in zip(worker["metrics"]["weights"], alone.metrics["weights"], strict=True):
                self.assertAlmostEqual(own, undisturbed, delta=1e-12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
