"""bimetal.deepspeed's checkpoints: another engine goes on with them, at any stage and on any ranks; what saves that
fail leave."""

import json
import os
import pathlib
import resource
import signal
import tempfile
import unittest
from unittest import mock

import models
import ranks
import torch
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
from bimetal import deepspeed
from bimetal.deepspeed import checkpoint
from bimetal.library import files


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
    """As on a file system where names cannot be swapped: the old one is aside, the new one not yet in its place.
    Returns the state after a next save that fails, and after one that does not."""
    engine = line_engine()
    engine.save_checkpoint(folder, "one", {"mark": 1})
    child = os.fork()
    if child == 0:
        aside = files.TemporaryFolder(f"{folder}/one")
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
            for names, steps in ((("global_steps", "training"), 0), ((), 0), (checkpoint._COUNTS, -1)):
                engine.micro_steps = steps
                with mock.patch.object(checkpoint, "_COUNTS", names):
                    engine.save_checkpoint(folder, "one")
                with self.assertRaisesRegex(bimetal.Error, "state.json is damaged: its counts"):
                    engine.load_checkpoint(folder)
            self.assertIs(engine.training, True)

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
