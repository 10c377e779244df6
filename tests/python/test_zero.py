"""bimetal.zero.shard: ordinary loops in shards, in float64 as one process trains."""

import contextlib
import functools
import unittest

import models
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import bimetal

STEPS, BATCH = 5, 12


class Mlp(nn.Module):
    """With a head that nothing uses, an embedding before the list and a layer behind it."""

    def __init__(self):
        super().__init__()
        self.before = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(3))
        self.after = nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        x = self.before(x).mean(1)
        for layer in self.layers:
            x = x + layer(x)
        return self.after(x)


def make(name):
    torch.manual_seed(3)
    if name == "mlp":
        return Mlp().double()
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=8, n_embd=16, n_layer=3, n_head=2, bos_token_id=None,
                                      eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).double()


def make_data(name, samples=STEPS * BATCH):
    generator = torch.Generator().manual_seed(4)
    if name == "mlp":
        return list(zip(torch.randint(0, 10, (samples, 4), generator=generator),
                        torch.randint(0, 3, (samples,), generator=generator), strict=True))
    ids = torch.randint(0, 24, (samples, 8), generator=generator)
    targets = ids.clone()
    for number, row in enumerate(targets):
        row[:1 + number % 6] = -100  # rows of unlike numbers of tokens
    return list(zip(ids, targets, strict=True))


def make_optimizer(kind, model):
    if kind == "adamw":  # two groups
        flat = [parameter for parameter in model.parameters() if parameter.dim() < 2]
        rest = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
        return torch.optim.AdamW([{"params": rest}, {"params": flat, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1,
                                 eps=1e-5)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, inputs, targets):
    outputs = model(inputs)
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    if logits.dim() == 3:
        logits, targets = logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
    return nn.functional.cross_entropy(logits, targets)


def as_lists(state):
    return {name: value.tolist() for name, value in state.items()}


def train(name, kind, level, shards, weights, options):
    """Steps of some model by shards on unequal ranks, or plainly (level 0). Returns the module's state, and the
    optimizer's."""
    model, alone = options["model"] if "model" in options else make(name), level == 0
    if options.get("recompute"):
        model.gradient_checkpointing_enable({"use_reentrant": options["recompute"] == "reentrant"})
    optimizer = make_optimizer(kind, model)
    data = make_data(name)
    sampler = bimetal.BalancedBatchSampler(data, BATCH, balance="equal" if alone else "fixed",
                                           weights=[] if alone else weights)
    tokens = name == "gpt2"
    sharded = None
    if not alone:
        sharded = bimetal.zero.shard(model, optimizer, level, shards=shards, sampler=sampler, tokens=tokens)
    for number, (inputs, targets) in enumerate(DataLoader(data, batch_sampler=sampler)):
        if number == 2 and sharded is not None:
            with torch.no_grad():  # an evaluation between steps, of unequal lengths
                for _ in range(1 + dist.get_rank()):
                    model(inputs)
            sharded.end_passes()
        if tokens:
            sampler.count_tokens(targets, shifted=True)
        pieces = options.get("pieces", 1)
        whole = int((targets[:, 1:] != -100).sum()) if tokens else len(targets)
        for at in range(min(pieces, len(targets))):
            x, y = inputs[at::pieces], targets[at::pieces]
            part = (int((y[:, 1:] != -100).sum()) if tokens else len(y)) / whole
            more = at + 1 < min(pieces, len(targets))
            with sharded.no_sync() if sharded is not None and more else contextlib.nullcontext():
                (loss_of(model, x, y) * part).backward()
        if alone:
            sampler.finish_step()
        if sharded is not None:
            sharded.clip_grad_norm_(0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    if sharded is None:
        return model.state_dict(), optimizer.state_dict()
    state, learnt = sharded.state_dict(), sharded.optimizer_state_dict()
    return as_lists(state), learnt and {number: as_lists(part) for number, part in learnt["state"].items()}


def refusals():
    """Impossible settings end with advice, at level 3 on every rank."""
    def refused(call, code, *fragments):
        error = ranks.raises(RuntimeError, call, *fragments)
        assert not isinstance(error, bimetal.Error) or error.code == code, error.code

    model = make("mlp")
    refused(lambda: bimetal.zero.shard(model, level=4), "invalid_argument", "1, 2 or 3")
    refused(lambda: bimetal.zero.shard(model, shards=[1, 2, 3]), "invalid_argument", "3 numbers for 2 ranks")
    refused(lambda: bimetal.zero.shard(model, shards="fair"), "invalid_argument", "fair")
    refused(lambda: bimetal.zero.shard(model, units=["nothing"]), "invalid_argument", "no module 'nothing'")
    refused(lambda: bimetal.zero.shard(model, units=["layers.0", "layers.0.0"]), "invalid_argument", "lies within")
    refused(lambda: bimetal.zero.shard(model, torch.optim.LBFGS(model.parameters())), "unsupported", "LBFGS")
    sharded = bimetal.zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    refused(model.state_dict, "invalid_argument", "sharded.whole()")
    x = torch.zeros(2, 4, dtype=torch.int64)
    refused(lambda: model.layers[0](torch.zeros(1, 6).double()), "invalid_argument", "layers.0 is called by itself")
    first = model(x)
    model(x)
    refused(lambda: first.sum().backward(), "unsupported", "backward of a forward that is not the last one")
    sharded.finish()
    with sharded.whole():
        assert set(model.state_dict()) == set(sharded.module.state_dict())
        refused(lambda: model(x), "invalid_argument", "held whole")
    with sharded.whole(modifier_rank=1):
        with torch.no_grad():
            model.after.bias.fill_(dist.get_rank() + 7)
    return sharded.state_dict(None)["after.bias"].tolist()


def not_finite_without_samples():
    """A rank whose share is 0 computes all the same; what comes of it must not count."""
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = bimetal.BalancedBatchSampler(make_data("mlp"), BATCH, balance="fixed", weights=[1, 0])
    sharded = bimetal.zero.shard(model, optimizer, 2, sampler=sampler)
    for inputs, targets in DataLoader(make_data("mlp"), batch_sampler=sampler):
        loss = loss_of(model, inputs, targets)
        (loss * float("nan") if dist.get_rank() == 1 else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return all(value.isfinite().all() for value in sharded.state_dict(None).values())


def shards_by(what):
    sharded = bimetal.zero.shard(make("mlp"), None, 1, shards=what)
    return sharded.shard_bytes


def lost_rank():
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bimetal.zero.shard(model, optimizer, 3)
    x = torch.zeros(2, 4, dtype=torch.int64)
    model(x).sum().backward()
    optimizer.step()
    if dist.get_rank() == 1:
        import os
        import signal
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.raises(bimetal.Error, lambda: [model(x) for _ in range(50)], "rank 1")
    return True


def distance(found, reference):
    assert found.keys() == reference.keys(), (found.keys(), reference.keys())
    return max(models.difference([value], [reference[name].double()]) if reference[name].abs().max() > 0
               else torch.tensor(value).abs().max().item() for name, value in found.items() if name != "calls")


# The model, the optimizer, the level, the shares of the batch, and options.
TRAININGS = [("mlp", "adamw", 1, [1, 2], {}), ("mlp", "sgd", 2, [1, 2], {"pieces": 3}), ("gpt2", "adamw", 2, [1, 0], {}),
             ("gpt2", "adamw", 3, [1, 3], {"pieces": 2, "recompute": "saved tensors"}),
             ("gpt2", "adamw", 3, [3, 1], {"recompute": "reentrant"})]


@ranks.needs("transformers")
class Exact(unittest.TestCase):
    def test_two_ranks_with_shards_3_to_1(self):
        results = ranks.several(2, [(train, name, kind, level, [3, 1], weights, options)
                                    for name, kind, level, weights, options in TRAININGS], timeout=400)
        reference = functools.cache(lambda name, kind: train(name, kind, 0, [], [], {}))
        for number, training in enumerate(TRAININGS):
            with self.subTest(training):
                state, learnt = reference(*training[:2])
                of_rank = [rank[number] for rank in results]
                self.assertLess(distance(of_rank[0][0], state), 1e-12)
                self.assertEqual(of_rank[1], [{}, {}])
                self.assertEqual(set(of_rank[0][1]), {str(place) for place in learnt["state"]})
                for place, part in learnt["state"].items():
                    self.assertLess(distance(of_rank[0][1][str(place)], part), 1e-11)


class Behaviour(unittest.TestCase):
    def test_refusals_shares_and_shards(self):
        asked = [("equal", 0.98, 1.02), ("memory", 0.5, 2), ([0, 1], 0, 0), ("speed", 0.01, 100)]
        results = ranks.several(2, [(refusals,), (not_finite_without_samples,),
                                    *((shards_by, what) for what, *_ in asked)])
        for refused, finite, *shards in results:
            self.assertEqual(refused, [8.0] * 3)  # what rank 1 has changed
            self.assertTrue(finite)
            for (what, low, high), (first, second) in zip(asked, shards, strict=True):
                self.assertTrue(low <= first / second <= high, (what, first, second))

    def test_a_lost_rank_is_named(self):
        with ranks.start(2, lost_rank) as job:
            statuses = job.wait(60)
            self.assertEqual(statuses, [0, -9], job.text())


if __name__ == "__main__":
    ranks.main(globals())
