"""Checkpoints from and to torch's DCP folders, and models on their way to a hub. DeepSpeed's side is tests/deepspeed."""

import argparse
import json
import os
import pathlib
import pickle
import sys
import tempfile

import hub
import ranks

ranks.skip_all_without("safetensors", "huggingface_hub", how="make setup-tests installs them")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

import bimetal
from bimetal.checkpoints import plain_pickle, whole
from searches import harness

STEPS, BATCH = 3, 6
TOLERANCE = 1e-12


def make_model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def make_optimizer(model):
    """Two groups, since which parameter is in which has to come through."""
    return torch.optim.AdamW([{"params": model[0].parameters(), "weight_decay": 0.3},
                              {"params": model[2].parameters(), "lr": 0.02}], lr=0.01)


def forget(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()


def train(model, optimizer, steps, rank=0, world=1):
    """The ranks have equal parts of each batch, as torch's own means want it."""
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(BATCH, 7, generator=generator, dtype=torch.float64)
        targets = torch.randint(0, 3, (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rank::world]), targets[rank::world]).backward()
        optimizer.step()


def unbroken():
    model = make_model()
    train(model, make_optimizer(model), range(2 * STEPS))
    return {name: value.tolist() for name, value in model.state_dict().items()}


def fsdp(forgotten):
    model = make_model()
    if forgotten:
        forget(model)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model, make_optimizer(model)


def saved_by_fsdp(folder, flat):
    model, optimizer = fsdp(forgotten=False)
    train(model, optimizer, range(STEPS), dist.get_rank(), dist.get_world_size())
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    dcp.save({"app": {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer, options=options)}},
             checkpoint_id=folder)


def continued_by_fsdp(folder):
    model, optimizer = fsdp(forgotten=True)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    train(model, optimizer, range(STEPS, 2 * STEPS), dist.get_rank(), dist.get_world_size())
    return {name: value.full_tensor().tolist() for name, value in model.state_dict().items()}


def by_zero(folder, level, saves):
    model = make_model()
    optimizer = make_optimizer(model)
    if not saves:
        forget(model)
    sharded = bimetal.zero.shard(model, optimizer, level, shards=[2, 1][:dist.get_world_size()])
    steps = range(STEPS)
    if not saves:
        sharded.load_checkpoint(folder)
        steps = range(STEPS, 2 * STEPS)
    train(model, optimizer, steps, dist.get_rank(), dist.get_world_size())
    if saves:
        sharded.save_checkpoint(folder, loop={"at": 3})
    with sharded.whole():
        return {name: value.tolist() for name, value in model.state_dict().items()}


class Checkpoints(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.environment.update(BIMETAL_PYTHON=sys.executable, PYTHONPATH=os.environ["PYTHONPATH"],
                                TORCHINDUCTOR_CACHE_DIR=str(self.folder / "inductor"))  # which torch makes as it is imported

    def path(self, name):
        return str(self.folder / name)

    def run_to_end(self, *arguments, status=0):
        return self.start(*map(str, arguments)).done(status)

    def assert_unbroken(self, of_ranks):
        reference = unbroken()
        for state in of_ranks:
            self.assertEqual(state.keys(), reference.keys())
            for name, value in reference.items():
                difference = (torch.tensor(state[name]) - torch.tensor(value)).abs().max()
                self.assertLess(difference, TOLERANCE, name)

    def test_what_fsdp_saves_in_either_form_zero_goes_on_with(self):
        for flat in (False, True):
            with self.subTest(flat=flat):
                ranks.on_ranks(2, saved_by_fsdp, self.path(f"dcp{flat}"), flat, backend="gloo")
                self.run_to_end("checkpoint", "import", self.path(f"dcp{flat}"), "--out", self.path(f"taken{flat}"))
                self.assert_unbroken(ranks.on_ranks(2, by_zero, self.path(f"taken{flat}"), 2, False))

    def test_what_zero_saves_in_slices_fsdp_goes_on_with(self):
        ranks.on_ranks(2, by_zero, self.path("slices"), 3, True)
        self.run_to_end("export", self.path("slices"), "--out", self.path("dcp"), "--format", "dcp")
        self.assert_unbroken(ranks.on_ranks(3, continued_by_fsdp, self.path("dcp"), backend="gloo"))

    def test_a_job_goes_on_after_the_way_there_and_back(self):
        """With its place in the data, its random numbers and its model's description: the end is that of an unbroken run."""
        keys = {"train__global_batch": 64, "train__learning_rate": 0.05, "train__dtype": "float64", "train__optimizer": "adam",
                "data__name": "mnist", "model__name": "cnn"}
        job = self.write_job(train__steps=6, checkpoint__dir="unbroken", **keys)
        self.train(job, workers=["cpu:threads=1"]).done()
        half = self.write_job("half.toml", train__steps=3, checkpoint__dir="half", **keys)
        self.train(half, workers=["cpu:threads=1"]).done()
        self.run_to_end("export", "half", "--out", "dcp", "--format", "dcp")
        self.run_to_end("checkpoint", "import", "dcp", "--out", "taken")
        rest = self.write_job("rest.toml", train__steps=6, checkpoint__dir="rest", **keys)
        self.train(rest, "--resume", "taken", workers=["cpu:threads=1"]).done()
        ends = [load_file(self.folder / name / "step-00000006" / "model.safetensors") for name in ("unbroken", "rest")]
        for name, value in ends[0].items():
            self.assertLess((ends[1][name] - value).abs().max(), TOLERANCE, name)
        self.run_to_end("export", "taken", "--out", "weights")  # which knows what the model is

    def test_what_cannot_be_taken_is_refused_with_the_reason(self):
        ranks.on_ranks(1, by_zero, self.path("one"), 1, True)
        for words, status, part in (
                (["checkpoint", "import", self.path("one"), "--out", "x"], 2, ".metadata"),
                (["export", self.path("one"), "--out", self.path("one"), "--format", "dcp"], 2, "there already"),
                (["export", self.path("nothing"), "--out", "x", "--format", "dcp"], 2, "there is no checkpoint"),
                (["export", self.path("one"), "--out", "x", "--format", "universal"], 3, "float64"),
                (["export", self.path("one"), "--out", "x", "--format", "dcp", "--push", "me/it"], 2, "--push goes with")):
            with self.subTest(words=words):
                self.assertIn(part, self.run_to_end(*words, status=status).error())
                self.assertFalse((self.folder / "x").exists())
        file = next(pathlib.Path(self.path("one")).glob("model*"))
        file.write_bytes(file.read_bytes()[:-1] + b"\x55")
        said = self.run_to_end("export", self.path("one"), "--out", "x", "--format", "dcp", status=10).error()
        self.assertIn(f"{file.name} is not what state.json says", said)

    def test_files_of_pickles_run_nothing(self):
        class Harm:
            def __reduce__(self):
                return os.system, (f"touch {folder}/harm",)

        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "state.pt")
            torch.save({"param": torch.arange(3.0), "scaler": argparse.Namespace(scale=2), "shape": torch.Size([3])}, file)
            found = plain_pickle.load(file)
            self.assertTrue(torch.equal(found["param"], torch.arange(3.0)))
            self.assertEqual(found["shape"], torch.Size([3]))
            self.assertEqual(vars(found["scaler"]), {})
            for zipped in (True, False):
                torch.save({"param": torch.arange(3.0), "harm": Harm()}, file, _use_new_zipfile_serialization=zipped)
                self.assertRaises((pickle.UnpicklingError, ValueError), plain_pickle.load, file)
            file.write_bytes(pickle.dumps(Harm()))
            self.assertRaises(ValueError, plain_pickle.load, file)
            self.assertEqual(os.listdir(folder), ["state.pt"])
            pickle.loads(pickle.dumps(Harm()))  # it would have done it
            self.assertIn("harm", os.listdir(folder))


class Hub(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.environment.update(BIMETAL_PYTHON=sys.executable, PYTHONPATH=os.environ["PYTHONPATH"], HF_HOME=str(self.folder / "home"),
                                HF_TOKEN=hub.TOKEN, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
        model = make_model()
        whole.write(whole.Whole(model.state_dict(), {}, training={"state": whole.new_training(whole.Whole({}, {}), 1)["state"]}),
                    self.folder / "saved")

    def push(self, *words, status=0):
        return self.start("export", "saved", "--out", "weights", "--push", "me/mine", *words).done(status)

    def test_weights_reach_the_hub_with_a_card_once(self):
        with hub.Hub() as there:
            self.environment["HF_ENDPOINT"] = there.address
            said = self.push("--private").out
            files = there.repositories["me/mine"]
            self.assertEqual(set(files), {"README.md", "model.safetensors"})
            self.assertEqual(files["model.safetensors"], (self.folder / "weights" / "model.safetensors").read_bytes())
            self.assertIn("tags:\n- bimetal", files["README.md"].decode())
            self.assertEqual(there.hidden, {"me/mine"})
            self.assertIn(f"{there.address}/me/mine/commit/", said)
            files["README.md"] = b"of the owner's own hand"
            told = json.loads(self.push("--json").out)
            self.assertEqual(told["files"], ["model.safetensors"])
            self.assertTrue(told["address"].startswith(f"{there.address}/me/mine/commit/"), told)
            self.assertEqual(there.repositories["me/mine"]["README.md"], b"of the owner's own hand")
            self.assertEqual(len(there.commits), 2)

    def test_who_may_not_write_is_told_and_so_is_who_finds_no_hub(self):
        with hub.Hub() as there:
            self.environment.update(HF_ENDPOINT=there.address, HF_TOKEN="hf_of_somebody_else")
            self.assertIn("hf auth login", self.push(status=7).error())
            self.assertEqual(there.commits, [])
        self.assertIn("no hub answers", self.push(status=5).error())
        self.assertTrue((self.folder / "weights" / "model.safetensors").is_file())


if __name__ == "__main__":
    ranks.main(globals())
