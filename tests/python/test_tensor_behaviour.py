"""bimetal.tensor.parts: random numbers, states, what is refused, and what goes wrong."""

import copy
import os
import signal
import unittest

import ranks
import torch
import torch.distributed as dist
from chains import loss_of, make_optimizer
from parted_models import PLAN, Plain, batches, make, plan_of
from ranks import refused
from torch import nn
from torch.utils.checkpoint import checkpoint

import bimetal
from bimetal.tensor.plan import plan_for


def learnt_before():
    """The state of a whole module and its optimizer is cut, and known as it was."""
    model = make("plain")
    optimizer = make_optimizer(model)
    loss_of(model, batches("plain")[0]).backward()
    optimizer.step()
    state, known = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    parted = bimetal.tensor.parts(model, optimizer, **plan_of("plain"), weights=[1, 3])
    found, learnt = parted.state_dict(None), parted.optimizer_state_dict(None)
    assert all(torch.equal(found[key], value) for key, value in state.items())
    assert learnt["param_groups"] == known["param_groups"]
    for place, values in known["state"].items():
        assert all(torch.equal(learnt["state"][place][key], value) for key, value in values.items())
    return True


def dropping():
    """Dropout within what is cut: every rank has its own there, and all have the same outside; what is computed again draws
    the same."""
    found = []
    for checkpointing in (False, True):
        model = make("gpt2", attn_pdrop=0.5)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(7 + dist.get_rank())
        optimizer = make_optimizer(model)
        parted = bimetal.tensor.parts(model, optimizer, weights=[3, 1], follow=0)
        losses = []
        for batch in batches("gpt2"):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        found.append([losses, model.transformer.wpe.weight.tolist(), float(torch.rand(()))])
        again = {loss_of(model, batches("gpt2")[0]).item() for _ in range(3)}
        assert len(again) == 3, again
        parted.state_dict()
    assert found[0] == found[1]
    return found[0]


class Keeps(nn.Module):
    """Its mask of dropout, too."""

    checkpointed = False

    def __init__(self):
        super().__init__()
        self.up, self.dropout, self.down = nn.Linear(4, 128), nn.Dropout(0.5), nn.Linear(128, 4)

    def forward(self, x):
        self.kept = checkpoint(self.first_half, x, use_reentrant=False) if self.checkpointed else self.first_half(x)
        return self.down(self.kept)

    def first_half(self, x):
        return self.dropout(self.up(x))


def half_checkpointed():
    """Backward computes a half of what is between two cut matrices again: draws of later steps are others still, and the
    ranks' alike, as without it."""
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(5)
        model = Keeps()
        model.checkpointed = checkpointed
        bimetal.tensor.parts(model, plan={"up": "columns", "down": "rows"})
        found.append([])
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            found[-1].append([float(torch.rand(())), (model.kept != 0).int().flatten().tolist()])
    assert found[0] == found[1], found
    return found[1]


def drawing_otherwise():
    """As on a CPU for which torch takes another library's numbers."""
    if dist.get_rank() == 1:
        own = nn.functional.dropout
        nn.functional.dropout = lambda x, p: own(x.repeat(2), p)[len(x):]
    before = torch.get_rng_state()
    error = ranks.raises(bimetal.Error, lambda: bimetal.tensor.parts(Keeps(), plan={"up": "columns", "down": "rows"}),
                         "dropout drops, for which the ranks' devices (cpu, cpu) draw unlike numbers")
    quiet = Keeps()
    quiet.dropout.p = 0.0
    torch.set_rng_state(before)
    bimetal.tensor.parts(quiet, plan={"up": "columns", "down": "rows"})
    return error.code


class Counting:
    """Counts the sums of gradients, and of activations."""

    def __init__(self, ranks_):
        self.ranks, self.shares, self.sums = ranks_, 0, 0

    def shared(self, x):
        self.shares += 1
        return self.ranks.shared(x)

    def sum(self, x):
        self.sums += 1
        return self.ranks.sum(x)


def counted():
    """A block takes two sums of each kind, those of Megatron's, though three layers are given the same."""
    model = make("llama")
    bimetal.tensor.parts(model)
    regions = [part._region for part in model.modules() if hasattr(part, "_region")]
    counting = Counting(regions[0]._ranks)
    for region in regions:
        region._ranks = counting
    loss_of(model, batches("llama")[0]).backward()
    return counting.shares, counting.sums


def writing():
    """Greedy texts are those of the whole model, keys and values of earlier tokens kept."""
    prompt = torch.arange(6).view(2, 3)
    whole = make("llama").eval().generate(prompt, max_new_tokens=6, do_sample=False)
    model = make("llama").eval()
    bimetal.tensor.parts(nn.ModuleDict({"inner": model}), weights=[3, 1])
    return torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False), whole)


def in_low_precision():
    model, plain = make("llama").float(), make("llama").float()
    parted = bimetal.tensor.parts(model, weights=[3, 1])
    batch = batches("llama")[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, expected = loss_of(model, batch), loss_of(plain, batch)
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)
    (loss / 2).backward()
    return parted.clip_grad_norm_(1.0).isfinite().item()


def following():
    """Whole tensors that have drifted apart are one again after so many steps."""
    model = make("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bimetal.tensor.parts(model, optimizer, **plan_of("plain"), follow=2)
    with torch.no_grad():
        model.head.bias += dist.get_rank()
    loss_of(model, batches("plain")[0]).backward()
    optimizer.step()
    apart = model.head.bias.tolist()
    optimizer.step()
    return apart, model.head.bias.tolist(), model.blocks[0]["attention"].out.bias.tolist()


def refusals():
    parts, uneven = bimetal.tensor.parts, "which are not"

    def with_plan(changed, *fragments, code="invalid_argument", **options):
        plan = {key: word for key, word in (PLAN | changed).items() if word}
        refused(lambda: parts(Plain(), plan=plan, **options), code, *fragments)

    refused(lambda: parts(Plain()), "invalid_argument", "a Plain is cut is not known", "GPT2, Llama", "plan={")
    with_plan({"*.query": "columns"}, "\"*.query\" names no layer", "blocks.0.attention.qkv, blocks.0.attention.out")
    with_plan({"*.attention.width": "count"}, "names no whole number")
    with_plan({"*.scale": "inside"}, "names no parameter")
    with_plan({"*.out": "diagonals"}, "\"diagonals\": columns, columns:heads")
    with_plan({"*.out": "rows:qkv"}, "\"rows:qkv\"")
    with_plan({"*.mlp.*": "columns"}, "blocks.0.mlp.both is cut otherwise by")
    with_plan({"*.attention.norm": "rows"}, "LayerNorm: Linear and transformers' Conv1D", code="unsupported")
    with_plan({"blocks.*.qkv": "columns:qkv=3"}, "48 features, " + uneven + " 3 times 3 pieces")
    with_plan({"*.mlp.both": "columns:qkv=2"}, "20 features, " + uneven)
    with_plan({"*.attention.inner": "count=3"}, "inner is 16, " + uneven + " 3 pieces")
    with_plan({"blocks.*.qkv": "columns:qkv=1", "*.attention.norm": None}, "1 pieces that stay whole", "too few for 2 ranks",
              "at most 1")
    with_plan({"blocks.*.out": None, "*.mlp.down": None}, "only columns is cut", "by rows")
    with_plan({}, "weights has 3 numbers for 2 ranks", weights=[1, 2, 3])
    with_plan({}, "weights \"memory\": \"equal\", \"speed\"", weights="memory")
    with_plan({}, "greater than 0", weights=[1, 0])
    with_plan({}, "follow = -1", follow=-1)
    with_plan({}, "rank 1 calls parts() with weights = [1.0, 2.0], rank 0 with [1.0, 1.0]", code="call_mismatch",
              weights=[1, 1 + dist.get_rank()])
    both = ["columns=10", "columns:pair=10"][dist.get_rank()]
    with_plan({"*.mlp.both": both}, "rank 1 calls parts() with plan", code="call_mismatch")
    inside = {"*.mlp.factor": None if dist.get_rank() else "inside"}
    with_plan(inside, "rank 1 calls parts() with inside", code="call_mismatch")
    with_plan({"*.inner": "count"} if dist.get_rank() else {"*.attention.inner": "count=8"}, "rank 1 calls parts() with counts",
              code="call_mismatch")
    tied = Plain()
    tied.blocks[0]["mlp"].down.weight = tied.blocks[1]["mlp"].down.weight
    refused(lambda: parts(tied, plan=PLAN), "unsupported", "are one tensor: leave it whole")
    refused(lambda: parts(nn.TransformerEncoderLayer(8, 2), plan={"linear1": "columns", "linear2": "rows"}), "unsupported",
            "TransformerEncoderLayer")
    joined = nn.parallel.DistributedDataParallel(Plain())
    refused(lambda: parts(joined, plan=PLAN), "invalid_argument", "before DistributedDataParallel")
    refused(lambda: parts(Plain(), torch.optim.LBFGS(Plain().parameters()), plan=PLAN), "unsupported", "LBFGS")
    other = Plain(2 + dist.get_rank())
    refused(lambda: parts(other, plan=PLAN), "call_mismatch", "blocks.2")

    model = Plain()
    parted = parts(model, plan=PLAN, weights="speed")
    mine = batches("plain")[dist.get_rank()]["input_ids"]
    refused(lambda: model(input_ids=mine), "call_mismatch", "rank 1 calls the module with")
    refused(parted.optimizer_state_dict, "invalid_argument", "no optimizer")
    ranks.raises(bimetal.Error, lambda: parted.load_state_dict({"table": torch.ones(2)}), "another module")
    loss_of(model, batches("plain")[0]).backward()  # nothing is lost
    clip = nn.utils.clip_grad_norm_
    refused(lambda: clip(model.parameters(), 1.0), "unsupported", "this rank's part", "parts(…).clip_grad_norm_()")
    refused(model.state_dict, "unsupported", "parts(…).state_dict()", "save_pretrained(folder, state_dict=…)")
    refused(model.blocks[0].state_dict, "unsupported", "parts(…).state_dict()")
    assert clip(model.head.parameters(), 1.0) > 0 and model.head.state_dict()  # whole on each rank
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts(model, optimizer, plan=PLAN)
    refused(optimizer.state_dict, "unsupported", "parts(…).optimizer_state_dict()")
    return True


def killed(when):
    model = make("plain")
    bimetal.tensor.parts(model, **plan_of("plain"))
    batch = batches("plain")[0]
    loss_of(model, batch).backward()
    layer = model.blocks[1]["mlp"].both
    if dist.get_rank() == 1:
        end = (lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        layer.register_forward_hook(end) if when == "forward" else layer.weight.register_hook(end)
    kind = bimetal.Error if when == "forward" else dist.DistBackendError
    error = ranks.raises(kind, lambda: [loss_of(model, batch).backward() for _ in range(2)], "rank 1")
    assert "peer_lost" in (error.code if when == "forward" else str(error)), error
    return True


class Behaviour(unittest.TestCase):
    def test_it_begins_with_what_was_learnt_before(self):
        self.assertEqual(ranks.on_ranks(2, learnt_before), [True] * 2)

    @ranks.needs("transformers")
    def test_dropout_within_what_is_cut(self):
        first, second = ranks.on_ranks(2, dropping)
        torch.testing.assert_close(first[0], second[0], rtol=1e-12, atol=0)
        torch.testing.assert_close(first[1], second[1], rtol=1e-9, atol=1e-12)
        self.assertEqual(first[2], second[2])

    def test_a_half_that_is_checkpointed_draws_others_in_each_step(self):
        first, second = ranks.on_ranks(2, half_checkpointed)
        self.assertEqual([step[0] for step in first], [step[0] for step in second])
        self.assertEqual(len({step[0] for step in first}), 3)
        self.assertEqual(len({tuple(step[1]) for step in first + second}), 6)

    def test_ranks_that_draw_otherwise(self):
        self.assertEqual(ranks.on_ranks(2, drawing_otherwise), ["unsupported"] * 2)

    @ranks.needs("transformers")
    def test_known_models_beside_others_of_like_names(self):
        import transformers
        vision = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=4, patch_size=2))
        self.assertTrue(any("self_attn.q_proj" in name for name, _ in vision.named_modules()))
        model = nn.ModuleDict({"vision": vision, "text": make("llama"), "other": make("gpt2")})
        found = {layer.path.partition(".")[0] for layer in plan_for(model, None).layers}
        self.assertEqual(found, {"text", "other"})
        self.assertEqual(len(plan_for(model, None).layers), sum(len(plan_for(model[name], None).layers) for name in found))

    @ranks.needs("transformers")
    def test_sums_of_a_block(self):
        self.assertEqual(ranks.on_ranks(2, counted), [[4, 4]] * 2)

    @ranks.needs("transformers")
    def test_texts(self):
        self.assertEqual(ranks.on_ranks(2, writing), [True] * 2)

    @ranks.needs("transformers")
    def test_low_precision(self):
        self.assertEqual(ranks.on_ranks(2, in_low_precision), [True] * 2)

    def test_what_is_whole_follows_the_first_rank(self):
        first, second = ranks.on_ranks(2, following)
        self.assertNotEqual(first[0], second[0])
        self.assertEqual(first[1:], second[1:])

    def test_refusals(self):
        self.assertEqual(ranks.on_ranks(2, refusals), [True] * 2)

    def test_a_killed_rank_ends_the_others(self):
        for when in ("forward", "backward"):
            with self.subTest(when), ranks.start(3, killed, when) as job:
                self.assertEqual(job.wait(60), [0, -9, 0], job.text())


if __name__ == "__main__":
    ranks.main(globals())
