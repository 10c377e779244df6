"""Elastic jobs on Ray: an actor is killed, the others stay, and a new one comes in its place."""

import os
import pathlib
import signal
import unittest

import clusters

if not clusters.WHY_NOT:
    import torch

    import bimetal
    import bimetal.ray


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


class Elastic(clusters.OnCluster):
    OFFERED = ({"a": 1}, {"b": 1}, {"c": 1})

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
