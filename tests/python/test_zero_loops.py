"""bimetal.zero.shard under loops that test_loops.py has not, on ranks of unequal shares: as one process in float64, or an error."""

import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import bimetal

SHARES = [6, 2]
X = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (8,), generator=torch.Generator().manual_seed(2))


class Out:
    """An object whose tensors nobody finds."""

    def __init__(self, logits):
        self.logits = logits


class Net(nn.Module):
    def __init__(self, seed, inputs=4, outputs=3):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
        self.hides = self.recomputes = False

    def encode(self, x):
        return checkpoint(self.net, x, use_reentrant=False) if self.recomputes else self.net(x)

    def forward(self, x):
        return Out(self.encode(x)) if self.hides else self.encode(x)


def adversaries(step, x, y):
    """The second's gradients of the first's loss are not wanted: frozen for it."""
    step.b.requires_grad_(False)
    step(cross_entropy(step.b(step.a(x)), y), "a")
    step.b.requires_grad_(True)
    step(cross_entropy(step.b(step.a(x).detach()), y), "b")


def distribution(step, x, y):
    step.a.hides = True
    step(-torch.distributions.Categorical(logits=step.a(x).logits).log_prob(y).mean())


def recomputed_and_hidden(step, x, y):
    step.a.hides = step.a.recomputes = True
    step(cross_entropy(step.a(x).logits, y))


def two_forwards(step, x, y):
    step(cross_entropy(step.a(x), y) + cross_entropy(step.a(2 * x), y))


def saliency(step, x, y):
    """The gradients of inputs by autograd.grad are this rank's own, and unweighed."""
    inputs = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(step.a(inputs).square().sum(), inputs)
    step(cross_entropy(step.a(found), y))


def clamped(step, x, y):
    step(cross_entropy(step.a(x), y))
    with torch.no_grad(), step.whole("a"):
        for parameter in step.a.parameters():
            parameter.clamp_(-0.2, 0.2)


def frozen_later(step, x, y):
    step.a.net[0].bias.requires_grad_(False)
    step(cross_entropy(step.a(x), y))


# For each loop, the words of level 3's refusal; empty if it works.
LOOPS = {adversaries: "", distribution: "", recomputed_and_hidden: "", clamped: "", frozen_later: "", saliency: "",
         two_forwards: "not the last one"}


class Step:
    """Two modules with their optimizers, in shards (level 1 to 3) or not (0)."""

    def __init__(self, level):
        self.a, self.b = Net(0), Net(1, 3)
        self.optimizers, self.shards = {}, {}
        for name in ("a", "b"):
            module = getattr(self, name)
            self.optimizers[name] = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
            if level:
                self.shards[name] = bimetal.zero.shard(module, self.optimizers[name], level, shards=[1, 2],
                                                       weigh=lambda: SHARES[dist.get_rank()] / sum(SHARES))

    def __call__(self, loss, names="ab"):
        loss.backward()
        for name in names:
            self.optimizers[name].step()
            self.optimizers[name].zero_grad()

    def whole(self, name):
        return self.shards[name].whole(modifier_rank=1) if self.shards else torch.no_grad()

    def parameters(self):
        found = []
        for name in ("a", "b"):
            state = self.shards[name].state_dict(None) if self.shards else getattr(self, name).state_dict()
            found.append(torch.cat([value.flatten() for value in state.values()]))
        return torch.cat(found)


def after(loop, level):
    """The parameters after three steps on this rank's samples."""
    step = Step(level)
    begin = sum(SHARES[:dist.get_rank()]) if level else 0
    mine = slice(begin, begin + SHARES[dist.get_rank()]) if level else slice(None)
    for _ in range(3):
        loop(step, X[mine], Y[mine])
    return step.parameters()


def all_loops(level):
    wrong = []
    for loop, refused in LOOPS.items():
        if level == 3 and refused:
            ranks.raises(RuntimeError, lambda loop=loop: after(loop, level), refused)
            continue
        difference = (after(loop, level) - after(loop, 0)).abs().max().item()
        if not difference < 1e-12:
            wrong.append([loop.__name__, difference])
    return wrong


def refused(change, *fragments, level):
    """Changes that shard() cannot handle are an error of the step, before it."""
    net = Net(0)
    net.net[2].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(net.net[0].parameters(), lr=0.1)
    sharded = bimetal.zero.shard(net, optimizer, level)

    def loop():
        returned = change(net, optimizer, sharded)
        cross_entropy(net(X), Y).backward()
        if callable(returned):
            returned()
        optimizer.step()

    ranks.raises(bimetal.Error, loop, *fragments)


def refusals(level):
    foreign = nn.Parameter(torch.zeros(2))

    def backwards(net, _, sharded):
        cross_entropy(net(X), Y).backward()
        sharded.clip_grad_norm_(1.0)

    def by_hand(net, *_):
        net.net[0].bias.grad, = torch.autograd.grad(cross_entropy(net(X), Y), net.net[0].bias)

    for change, *fragments in (
            (lambda net, *_: lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0), "net.0.weight", "sharded.clip_grad_norm_"),
            (lambda net, *_: net.zero_grad, "net.0.weight", "zero_grad() of the optimizer"),
            (lambda net, *_: torch.optim.AdamW(net.parameters()).step, "net.0.weight", "sharded.attach(optimizer)"),
            (lambda net, optimizer, _: optimizer.add_param_group({"params": [net.net[2].weight]}), "net.2.weight", "attach"),
            (lambda net, optimizer, _: optimizer.add_param_group({"params": [foreign]}), "shape [2]", "comes before shard()"),
            (lambda net, *_: [net.net[2].bias.requires_grad_(True)] and None, "net.2.bias", "was frozen"),
            (lambda net, *_: [net.net.append(nn.Linear(3, 3).double())] and None, "net.3.weight", "not there"),
            (lambda net, *_: setattr(net.net[0].bias, "data", torch.zeros(8).double()), "net.0.bias", "other memory"),
            (lambda net, *_: setattr(net.net[0].bias, "grad", torch.ones(8).double()), "net.0.bias", "p.grad"),
            (lambda net, *_: lambda: setattr(net.net[0].bias, "grad", torch.ones(8).double()), "net.0.bias", "p.grad"),
            (by_hand, "net.0.bias", "p.grad"),
            (lambda net, *_: cross_entropy(net(X), Y).backward(create_graph=True), "torch.autograd.grad"),
            (lambda net, *_: bimetal.zero.shard(net, level=level), "net.0.weight is in shards already"),
            (lambda _, optimizer, sharded: sharded.attach(optimizer), "has an optimizer already"),
            (backwards, "before optimizer.step()")):
        if level < 3 or "other memory" not in fragments:
            refused(change, *fragments, level=level)
    return True


def attached(level):
    """An optimizer that is made after shard()."""
    results = []
    for in_shards in (False, True):
        net = Net(0)
        sharded = bimetal.zero.shard(net, None, level) if in_shards else None
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        if in_shards:
            ranks.raises(bimetal.Error, optimizer.step, "sharded.attach(optimizer)")
            sharded.attach(optimizer)
            here = sum(piece.tensor.numel() for piece in sharded.pieces)
            assert 0 < here < 67, here
            assert repr(sharded) == f"level {level}, shard {dist.get_rank()} of 2: {here} of 67 trained parameters", sharded
        for _ in range(3):
            cross_entropy(net(X), Y).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(torch.cat([value.flatten() for value in (sharded.state_dict(None) if in_shards else net.state_dict()).values()]))
    return (results[0] - results[1]).abs().max().item()


class Loops(unittest.TestCase):
    def test_they_train_as_one_process_or_raise(self):
        for level, *of_rank in zip((1, 2, 3), *ranks.several(2, [(all_loops, level) for level in (1, 2, 3)]), strict=True):
            self.assertEqual(of_rank, [[], []], level)

    def test_what_would_go_wrong_is_an_error_of_the_first_step(self):
        ranks.several(2, [(refusals, level) for level in (1, 2, 3)])

    def test_an_optimizer_comes_later(self):
        for differences in ranks.several(2, [(attached, level) for level in (1, 3)]):
            self.assertLess(max(differences), 1e-12)


if __name__ == "__main__":
    ranks.main(globals())
