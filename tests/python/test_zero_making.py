"""Modules made within bimetal.zero.made_in_shards, or deepspeed.zero.Init: nowhere whole, and trained as one process trains."""

import contextlib
import os
import pathlib
import unittest

import ranks
import test_zero
import torch
import torch.distributed as dist
from torch import nn

import bimetal
from bimetal import deepspeed

HIDDEN, LAYERS = 1600, 40  # 40 x 10.2 MB in float32


class Net(nn.Module):
    """Nested modules, a parameter of its own, tied weights, a buffer, a frozen layer, what it does to its parts at its end."""

    def __init__(self):
        super().__init__()
        self.before = nn.Embedding(10, 6)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(3)])
        self.scale = nn.Parameter(torch.rand(6))
        self.after = nn.Linear(6, 10, bias=False)
        self.after.weight = self.before.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        for layer in self.layers:  # they are in parts already
            nn.init.normal_(layer[0].weight, std=0.2)
            layer[0].bias.data.uniform_(-0.1, 0.1)

    def forward(self, x):
        self.calls += 1
        x = self.before(x).mean(1)
        for layer in self.layers:
            x = x + layer(x)
        return self.after(self.frozen(x) * self.scale)


def make(name):
    torch.manual_seed(3)
    if name == "net":
        return Net().double()
    from transformers import AutoModelForCausalLM, GPT2Config
    config = GPT2Config(vocab_size=24, n_positions=8, n_embd=16, n_layer=3, n_head=2, bos_token_id=None,
                        eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return AutoModelForCausalLM.from_config(config).double()


def train(name, level, making=None, shards="equal"):
    """The module's state on rank 0 after test_zero.py's loop; level 0: of one process."""
    with contextlib.nullcontext() if making is None else bimetal.zero.made_in_shards(making):
        model = make(name)
    return test_zero.train("gpt2" if name == "gpt2" else "mlp", "adamw", level, shards, [1, 2], {"model": model})[0]


def resident(name="VmRSS"):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def memory(shards, double=False):
    """The memory of making a model of 410 MB, or by conversion of 820: the most, the part that stays, and the most that
    shard() adds."""
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))

    with deepspeed.zero.Init(shards=shards):
        nn.Linear(2, 2)  # torch imports what it has not needed so far
    before = resident()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    with deepspeed.zero.Init(shards=shards):
        model = Deep().double() if double else Deep()
    peak, kept = resident("VmHWM") - before, resident() - before
    sharded = bimetal.zero.shard(model, None, 3, shards=shards)
    return [peak, kept, resident("VmHWM") - before, sum(piece.tensor.nbytes for piece in sharded.pieces)]


def misuse():
    model = nn.Linear(4, 4)
    ranks.raises(bimetal.Error, lambda: deepspeed.zero.Init(module=model), "within")
    for bad in ([0, 0], [2, -1], [float("nan"), 1]):
        ranks.raises(bimetal.Error, deepspeed.zero.Init(shards=bad).__enter__, "shards: numbers of at least 0, not all 0")
    with deepspeed.zero.Init():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = nn.Parameter(model[0].weight.data)
    ranks.raises(bimetal.Error, lambda: bimetal.zero.shard(model, None, 3), "tie them")
    with deepspeed.zero.Init():
        with bimetal.zero.made_in_shards([1, 3]):  # adds nothing
            nn.Linear(4, 4)
        model = nn.Linear(4, 4)
    for look in (lambda: model(torch.zeros(1, 4)), lambda: model.weight.sum().item(), lambda: model.state_dict()["bias"] + 1):
        ranks.raises(RuntimeError, look, "its values are not there")
    with deepspeed.zero.GatheredParameters(model.weight, modifier_rank=1), torch.no_grad():
        model.weight.fill_(dist.get_rank() + 5)
    with deepspeed.zero.GatheredParameters(list(model.parameters())), torch.no_grad():
        found = sorted(set(model.weight.flatten().tolist()))
        model.weight.fill_(9)  # lost: no rank is said to modify
    with deepspeed.zero.GatheredParameters(model.weight):
        found += sorted(set(model.weight.flatten().tolist()))
    with deepspeed.zero.Init(enabled=False):
        whole = nn.Linear(4, 4)
    names = [nn.Linear.__init__.__qualname__, nn.Module._apply.__qualname__]
    return [found, bool(whole.weight.isfinite().all()), *names]


class Making(unittest.TestCase):
    def compare(self, name, calls):
        reference = train(name, 0)
        results = ranks.several(2, [(train, name, *call) for call in calls], timeout=300)
        for call, state in zip(calls, results[0], strict=True):
            with self.subTest(call):
                self.assertLess(test_zero.distance(state, reference), 1e-12)

    def test_trained_as_by_one_process(self):
        self.compare("net", [(3, "equal", "equal"), (3, [3, 1], [1, 2]), (3, [0, 1], [1, 0]), (2, "equal", "equal")])

    @ranks.needs("transformers")
    def test_a_model_of_hugging_faces(self):
        self.compare("gpt2", [(3, "equal", "equal"), (3, [3, 1], [3, 1])])

    @unittest.skipUnless(os.path.exists("/proc/self/clear_refs"), "Linux")
    def test_no_rank_needs_room_for_the_whole(self):
        for shards, parts, double in (([1, 1], [0.5, 0.5], False), ([3, 1], [0.75, 0.25], False),
                                      ([1, 1], [0.5, 0.5], True)):
            whole = LAYERS * HIDDEN * HIDDEN * (8 if double else 4)
            figures = ranks.on_ranks(2, memory, shards, double)
            for part, (peak, kept, with_pieces, pieces) in zip(parts, figures, strict=True):
                with self.subTest(shards=shards, part=part, double=double):
                    self.assertLess(peak, part * whole + 0.15 * whole)
                    self.assertLess(kept, part * whole + 0.1 * whole)
                    self.assertLess(with_pieces, part * whole + 0.2 * whole)
                    self.assertAlmostEqual(pieces / whole, part, delta=0.01)

    def test_misuse(self):
        for of_rank in ranks.on_ranks(2, misuse):
            self.assertEqual(of_rank, [[6.0, 6.0], True, "Linear.__init__", "Module._apply"])
        with self.assertRaisesRegex(bimetal.Error, "init_process_group"):
            with deepspeed.zero.Init():
                pass
        self.assertFalse(dist.is_initialized())


if __name__ == "__main__":
    ranks.main(globals())
