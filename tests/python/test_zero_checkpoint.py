"""Checkpoints of bimetal.zero and bimetal.deepspeed, of which each rank writes its part: killed while they are written, without
room on one rank, read by the program's commands, and never all in one rank's memory."""

import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn

import bimetal
from bimetal import deepspeed

WIDTH = 700  # 8 MB of parameters in float64, and states of twice that
CONFIG = {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
          "zero_optimization": {"stage": 3}}


def wide_model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).double()


def make_engine(stage=3, shards="equal"):
    model = wide_model()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), shards=shards,
                                config={**CONFIG, "zero_optimization": {"stage": stage}})[0]


def fill(engine, mark):
    """The parameters and their states, wherever they are."""
    pieces = engine.optimizer.param_groups[0]["params"]
    with torch.no_grad():
        for piece in pieces:
            piece.fill_(mark)
    if not engine.optimizer.state:
        for piece in pieces:
            engine.optimizer.state[piece] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(piece),
                                             "exp_avg_sq": torch.zeros_like(piece)}
    for state in engine.optimizer.state.values():
        state["exp_avg"].fill_(mark)


def held_by(engine):
    """The one number that all of an engine has on this rank; AssertionError if there are several."""
    pieces = engine.optimizer.param_groups[0]["params"]
    values = {float(value) for piece in pieces for value in (piece.detach().min(), piece.detach().max())}
    values |= {float(value) for state in engine.optimizer.state.values()
               for value in (state["exp_avg"].min(), state["exp_avg"].max())}
    assert len(values) == 1, values
    return values.pop()


def save_for_ever(folder):
    engine = make_engine(shards=[2, 1])
    mark = 0
    while True:
        mark += 1
        fill(engine, mark)
        engine.save_checkpoint(folder, "one", {"mark": mark})
        if mark == 2:
            print("saved", flush=True)


def trouble_on_one_rank(folder):
    """The errors of both ranks if rank 1 may write only a part; all goes on afterwards."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    engine = make_engine()
    fill(engine, 1)
    engine.save_checkpoint(folder, "one", {"mark": 1})
    fill(engine, 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    said = str(ranks.raises(bimetal.Error, lambda: engine.save_checkpoint(folder, "one", {"mark": 2})))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()
    left = sorted(os.listdir(folder))
    state = engine.load_checkpoint(folder)[1]
    dist.barrier()
    if dist.get_rank() == 0:
        for path in pathlib.Path(folder, "one").glob("model-00001*"):
            path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    dist.barrier()
    damaged = str(ranks.raises(bimetal.Error, lambda: engine.load_checkpoint(folder)))
    return [said, left, state, held_by(engine), damaged]


def peak_of(action):
    """How much more memory than before was resident at any time in it."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")

    def figure(name):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    before = figure("VmRSS")
    action()
    return figure("VmHWM") - before


def memory_of_a_save(folder):
    model = nn.Sequential(*(nn.Linear(1500, 1500) for _ in range(12)))  # 108 MB, and states of twice that
    optimizer = torch.optim.AdamW(model.parameters())
    sharded = bimetal.zero.shard(model, optimizer, 3)
    model(torch.ones(1, 1500)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    saved = peak_of(lambda: sharded.save_checkpoint(f"{folder}/one", {"at": 3}))
    loaded = peak_of(lambda: sharded.load_checkpoint(f"{folder}/one"))
    return [saved, loaded]


def saved_by_zero(folder, level, shards):
    engine = make_engine(level, shards)
    fill(engine, 5)
    engine.shards.sharded.save_checkpoint(f"{folder}/one", {"at": 3})


def loaded_by_zero(folder, level, shards):
    engine = make_engine(level, shards)
    loop = engine.shards.sharded.load_checkpoint(f"{folder}/one")
    return [loop, held_by(engine) if engine.shards.sharded.pieces else 5.0]


class NoRoom(torch.optim.SGD):
    """On rank 1 there is none for the states that it is to take."""

    by_element, kind = True, "sgd"

    def put_states(self, states):
        if dist.get_rank() == 1:
            raise MemoryError("no room for the states")
        self.state.clear()
        self.state.update(states)


def shard_by(optimizer, **options):
    model = nn.Linear(6, 5)
    made = optimizer(model.parameters(), lr=0.1, **options)
    sharded = bimetal.zero.shard(model, made, 3)
    model(torch.ones(1, 6)).sum().backward()
    made.step()
    return sharded


def of_no_engine(folder):
    """An engine that is to load what bimetal.zero has saved: what it has when that has failed, and of the module alone."""
    saved_by_zero(folder, 3, "equal")
    engine = make_engine()
    fill(engine, 1)
    ranks.raises(bimetal.Error, lambda: engine.load_checkpoint(folder, "one"), "was saved by no engine")
    before = held_by(engine)
    path, state = engine.load_checkpoint(folder, "one", load_module_only=True)
    pieces = engine.optimizer.param_groups[0]["params"]
    return [before, os.path.basename(path), state, sorted({float(value) for piece in pieces for value in piece.detach()})]


def what_does_not_go(folder):
    """The errors of both ranks for saves and loads that fail."""
    sharded = shard_by(torch.optim.SGD, momentum=0.9)
    sharded.save_checkpoint(f"{folder}/one")

    def said_of(action, kind=bimetal.Error):
        return str(ranks.raises(kind, action)).replace(folder, "F")

    said = [said_of(lambda: sharded.save_checkpoint(f"{folder}/mine"))]
    said.append(said_of(lambda: shard_by(torch.optim.AdamW).load_checkpoint(f"{folder}/one")))
    said.append(said_of(lambda: shard_by(NoRoom, momentum=0.9).load_checkpoint(f"{folder}/one"), Exception))
    if dist.get_rank() == 1:
        next(iter(sharded._optimizer.state.values()))["odd"] = object()
    said.append(said_of(lambda: sharded.save_checkpoint(f"{folder}/two")))
    adam, adamw = shard_by(torch.optim.Adam), shard_by(torch.optim.AdamW)
    adam.save_checkpoint(f"{folder}/adam", "a loop")
    return [*said, adamw.load_checkpoint(f"{folder}/adam")]


@unittest.skipUnless(os.path.exists("/proc/self/clear_refs"), "Linux")
class Slices(unittest.TestCase):
    def program(self, *arguments):
        done = subprocess.run([os.environ["BIMETAL"], *map(str, arguments)], capture_output=True, text=True, check=False,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_killed_at_any_moment_the_last_whole_one_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            for killed in ([1], [0], [0, 1], [1]):
                with ranks.start(2, save_for_ever, folder) as job:
                    job.wait_for("saved", 120)
                    time.sleep(random.uniform(0, 0.5))
                    for rank in killed:
                        os.kill(job.processes[rank].pid, signal.SIGKILL)
                    job.wait(60)
                engine = make_engine(stage=0)
                state = engine.load_checkpoint(folder)[1]
                self.assertGreaterEqual(state["mark"], 2)
                self.assertEqual(held_by(engine), state["mark"])
                self.assertIn("in slices of 2 ranks", self.program("checkpoint", "inspect", f"{folder}/one"))
            fill(engine, 1)
            engine.save_checkpoint(folder, "one", {"mark": 1})
            self.assertEqual(sorted(os.listdir(folder)), ["latest", "one"])

    def test_what_goes_wrong_on_one_rank_all_say_and_nothing_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = ranks.on_ranks(2, trouble_on_one_rank, folder)
            for said, left, state, held, damaged in (first, second):
                self.assertRegex(said, "one: rank 1: cannot write .*00001-of-00002.safetensors.*too large")
                self.assertEqual([left, state, held], [["latest", "one"], {"mark": 1}, 1.0])
                self.assertRegex(damaged, "model-00001-of-00002.safetensors is damaged")

    def test_what_does_not_go_all_ranks_refuse(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = pathlib.Path(folder, "mine")
            mine.mkdir()
            (mine / "notes").write_text("of years")
            results = ranks.on_ranks(2, what_does_not_go, folder)
            for rank, (taken, other_kind, no_room, no_json, loop) in enumerate(results):
                self.assertIn("F/mine is there and is no checkpoint: give a name that is free, or a checkpoint's", taken)
                self.assertIn("F/one was saved with the optimizer 'sgd', this loop uses 'adamw'", other_kind)
                self.assertEqual(no_room, "no room for the states" if rank == 1 else
                                 "rank 1 could not read its part of F/one: no room for the states [aborted, rank 1]")
                self.assertRegex(no_json, "F/two: rank 1: .* cannot be written as JSON")
                self.assertEqual(loop, "a loop")
            self.assertEqual((mine / "notes").read_text(), "of years")
            self.assertEqual(sorted(os.listdir(folder)), ["adam", "mine", "one"])

    def test_an_engine_takes_the_module_alone_of_what_none_has_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            for found in ranks.on_ranks(2, of_no_engine, folder):
                self.assertEqual(found, [1.0, "one", {}, [5.0]])

    def test_a_save_removes_leftovers_of_its_own_name_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("one", "one-more", "other"):
                pathlib.Path(folder, f".{name}.0123456789abcdef.tmp").mkdir()
            ranks.on_ranks(1, saved_by_zero, folder, 3, "equal")
            self.assertEqual(sorted(os.listdir(folder)),
                             [".one-more.0123456789abcdef.tmp", ".other.0123456789abcdef.tmp", "one"])

    def test_no_rank_ever_has_all_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for figures in ranks.on_ranks(2, memory_of_a_save, folder):
                for peak in figures:
                    # Of 324 MB, a rank's part being 162. Some tensors of 9 MB are on their way, and pages of what is written.
                    self.assertLess(peak, 90e6)

    def test_any_level_and_shards_read_any(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.on_ranks(3, saved_by_zero, folder, 3, [5, 2, 0])
            for level, shards in ((3, [1, 4]), (1, [0, 1])):
                for found in ranks.on_ranks(2, loaded_by_zero, folder, level, shards):
                    self.assertEqual(found, [{"at": 3}, 5.0])

    def test_the_programs_commands_know_them(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.on_ranks(2, saved_by_zero, folder, 2, [3, 1])
            seen = self.program("checkpoint", "inspect", f"{folder}/one")
            self.assertIn("981400 numbers in 4 tensors; in slices of 2 ranks", seen)
            self.program("checkpoint", "consolidate", f"{folder}/one", "--out", f"{folder}/whole")
            self.program("export", f"{folder}/one", "--out", f"{folder}/weights")
            import safetensors.torch
            whole = safetensors.torch.load_file(f"{folder}/whole/model.safetensors")
            self.assertEqual({name: list(value.shape) for name, value in whole.items()},
                             {name: list(value.shape) for name, value in wide_model().state_dict().items()})
            self.assertTrue(all(bool((value == 5).all()) for value in whole.values()))
            exported = safetensors.torch.load_file(f"{folder}/weights/model.safetensors")
            self.assertEqual(whole.keys(), exported.keys())
            learnt = safetensors.torch.load_file(f"{folder}/whole/optimizer.safetensors")
            self.assertEqual(learnt["0.weight.step"].item(), 1)
            self.assertEqual(learnt["0.weight.exp_avg"].shape, whole["0.weight"].shape)
            self.assertEqual(json.loads(pathlib.Path(folder, "whole", "state.json").read_text())["format_version"], 1)
            pathlib.Path(folder, "one").rename(f"{folder}/slices")
            pathlib.Path(folder, "whole").rename(f"{folder}/one")
            for found in ranks.on_ranks(2, loaded_by_zero, folder, 3, "equal"):
                self.assertEqual(found, [{"at": 3}, 5.0])


if __name__ == "__main__":
    ranks.main(globals())
