"""bimetal.deepspeed's checkpoints: another engine goes on with them, at any stage and on any ranks; what saves that
fail leave."""

import json
import os
import pathlib
import resource
import signal
import tempfile
import unittest

import models
import ranks
import torch
import torch.distributed as dist
from test_deepspeed import (
    CONFIG,
    SAMPLES,
    Line,
    logits_loss,
    needs_transformers,
    plain,
    run_epochs,
    start_engine,
    whole_parameters,
)
from torch import nn

import bimetal
from bimetal import _C, deepspeed


def first_epoch(folder, stage):
    """It ends in the midst of a step."""
    import deepspeed_gpt2 as example
    engine, _, loader, _ = start_engine(example.make_model().double(), example.make_data(SAMPLES),
                                        {"zero_optimization": {"stage": stage}}, shards=[1, 2])
    run_epochs(engine, loader, logits_loss, 1)
    engine.save_checkpoint(folder, client_state={"stage": stage})


def second_epoch(folder, stage, weights, shards, offload=""):
    import deepspeed_gpt2 as example
    model = example.make_model().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    zero = {"stage": stage, **({"offload_optimizer": {"device": "nvme", "nvme_path": offload}} if offload else {})}
    engine, _, loader, _ = start_engine(model, example.make_data(SAMPLES), {"zero_optimization": zero}, weights,
                                        shards=shards)
    engine.load_checkpoint(folder)
    run_epochs(engine, loader, logits_loss, 1)
    return whole_parameters(engine)


def killed_between_two_steps(folder):
    """As where names cannot be swapped: the old one is aside, the new one not yet in its place. What a next save that fails
    leaves of it, and one that does not."""
    engine = line_engine()
    engine.save_checkpoint(folder, "one", {"mark": 1})
    child = os.fork()
    if child == 0:
        aside = _C.TemporaryFolder(f"{folder}/one")
        os.rename(f"{folder}/one", aside.path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    ranks.raises(bimetal.Error, lambda: engine.save_checkpoint(folder, "one", {"mark": 2}), "cannot write")
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = [json.loads(json.loads(state.read_text())["loop"])["loop"]["client_state"]
            for state in pathlib.Path(folder).glob("*/state.json")]
    engine.save_checkpoint(folder, "one", {"mark": 3})
    return [left, engine.load_checkpoint(folder)[1], sorted(os.listdir(folder))]


def save_as_before(engine, folder):
    """As rank 0 wrote checkpoints before they were in slices."""
    import safetensors.torch
    shards = engine.shards
    state = engine.module.state_dict() if shards is None else shards.sharded.state_dict()
    learnt = engine.optimizer.state_dict() if shards is None else shards.sharded.optimizer_state_dict()
    if dist.is_initialized() and dist.get_rank() > 0:
        return
    path = pathlib.Path(folder, "old")
    path.mkdir(parents=True)
    own = dict(state)
    own.pop("lm_head.weight")  # tied
    safetensors.torch.save_file({name: value.clone() for name, value in own.items()}, path / "model.safetensors",
                                metadata={"lm_head.weight": "transformer.wte.weight"})
    tensors = {f"{number}/{name}": value for number, values in learnt["state"].items() for name, value in values.items()}
    safetensors.torch.save_file(tensors, path / "optimizer.safetensors")
    safetensors.torch.save_file({}, path / "gradients.safetensors")
    counts = {name: getattr(engine, name) for name in ("global_steps", "micro_steps", "skipped_steps")}
    (path / "state.json").write_text(json.dumps({
        "counts": counts, "loss_scale": engine.config.core.loss_scale_state,
        "optimizer": {"groups": learnt["param_groups"], "values": {}}, "scheduler": engine.lr_scheduler.state_dict(),
        "sampler": engine.sampler.state_dict(), "client_state": {"mark": 5}}))
    pathlib.Path(folder, "latest").write_text("old")


def earlier(folder, stage, then):
    """Steps, a checkpoint as releases before wrote it, and what two engines have after the next steps: the same, and another
    that has read it."""
    import deepspeed_gpt2 as example
    data = example.make_data(SAMPLES)
    engine, _, loader, _ = start_engine(example.make_model().double(), data, {"zero_optimization": {"stage": stage}})
    batches = iter(loader)
    for _ in range(4):
        engine.backward(logits_loss(engine, next(batches)))
        engine.step()
    save_as_before(engine, folder)
    for _ in range(4):
        engine.backward(logits_loss(engine, next(batches)))
        engine.step()
    torch.manual_seed(99)
    other, _, loader, _ = start_engine(type(engine.module)(engine.module.config).double(), data,
                                       {"zero_optimization": {"stage": then}})
    dist.barrier()
    assert other.load_checkpoint(folder)[1] == {"mark": 5}
    batches = iter(loader)
    for _ in range(4):
        other.backward(logits_loss(other, next(batches)))
        other.step()
    return [whole_parameters(engine), whole_parameters(other)]


def line_engine():
    model = Line()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)[0]


@needs_transformers
class Gpt2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reference = [parameter.detach() for parameter in plain(2)]

    def test_a_checkpoint_goes_on_at_any_stage_on_any_ranks(self):
        with tempfile.TemporaryDirectory() as root:
            ranks.several(2, [(first_epoch, f"{root}/{stage}", stage) for stage in (0, 1, 3)])
            calls = [(second_epoch, f"{root}/3", 0, [1, 2, 1], "equal"),
                     (second_epoch, f"{root}/1", 3, [1, 2, 1], [5, 2, 0]),
                     (second_epoch, f"{root}/0", 2, [0, 2, 1], [1, 0, 1], root),
                     (second_epoch, f"{root}/0", 3, [1, 1, 1], [1, 2, 1])]
            for of_rank in ranks.several(3, calls, timeout=300):
                for call, parameters in zip(calls, of_rank, strict=True):
                    self.assertLess(models.difference(parameters, self.reference), 1e-12, call)

    def test_checkpoints_of_earlier_releases_load(self):
        for stage, then in ((0, 3), (3, 0), (2, 3)):
            with tempfile.TemporaryDirectory() as folder:
                for own, other in ranks.on_ranks(2, earlier, folder, stage, then):
                    self.assertLess(models.difference(other, [torch.tensor(value, dtype=torch.float64) for value in own]),
                                    1e-12, (stage, then))


class Engine(unittest.TestCase):
    def test_a_checkpoint_that_is_not_there(self):
        engine = line_engine()
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(engine.load_checkpoint(folder), (None, None))
            with self.assertRaisesRegex(bimetal.Error, "is no checkpoint"):
                engine.load_checkpoint(folder, "other")

    def test_one_whose_state_is_damaged(self):
        engine = line_engine()
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder, "one")
            for text in ("{", "7", ""):
                pathlib.Path(folder, "one", "state.json").write_text(text)
                with self.assertRaisesRegex(bimetal.Error, "state.json is damaged"):
                    engine.load_checkpoint(folder)

    def test_counts_that_are_none(self):
        engine = line_engine()
        with tempfile.TemporaryDirectory() as folder:
            import safetensors.torch
            safetensors.torch.save_model(engine.module, f"{folder}/model.safetensors")
            safetensors.torch.save_file({}, f"{folder}/gradients.safetensors")
            own = {name: 1 for name in ("global_steps", "micro_steps", "skipped_steps")}
            for counts in ({**own, "forward": 1}, {**own, "global_steps": -1}, {}, None):
                pathlib.Path(folder, "state.json").write_text(json.dumps({"counts": counts, "client_state": {}}))
                with self.assertRaisesRegex(bimetal.Error, "state.json is damaged: its counts"):
                    engine.load_checkpoint(folder, ".", load_optimizer_states=False)
            self.assertTrue(callable(engine.forward))

    def test_a_save_removes_no_whole_copy_before_there_is_another(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(killed_between_two_steps(folder), [[{"mark": 1}], {"mark": 3}, ["latest", "one"]])

    def test_a_client_state_that_is_no_json(self):
        engine = line_engine()
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(bimetal.Error, "JSON"):
                engine.save_checkpoint(folder, client_state={"function": json.dumps})
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    ranks.main(globals())
