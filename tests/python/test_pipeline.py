"""bimetal.pipeline.stages: Hugging Face's models and others in stages, in float64 as one process trains."""

import copy
import importlib.util
import os
import signal
import tempfile
import time
import unittest

import models
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import bimetal
from bimetal.pipeline.loss import causal_loss_sum, causal_weight
from bimetal.pipeline.staged import Learning

WORDS, LENGTH = 24, 8
SAMPLES = [10, 7, 11, 6]  # of the batches


class Sequence(nn.Sequential):
    """Blocks of which some work in place and some have nothing to learn."""

    def __init__(self):
        super().__init__(nn.Embedding(WORDS, 12), nn.Linear(12, 20), nn.ReLU(inplace=True), nn.Linear(20, 20), nn.Tanh(),
                         nn.LayerNorm(20), nn.Linear(20, WORDS))


class Pairs(nn.Module):
    """Blocks that return a tuple, a parameter of the module's own, and a list that is not the largest one's sibling."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 12)

        def forward(self, hidden, factor):
            return hidden + torch.tanh(self.layer(hidden)) * factor, None

    def __init__(self):
        super().__init__()
        self.begin = nn.Parameter(torch.randn(12))
        self.table = nn.Embedding(WORDS, 12)
        self.norm = nn.LayerNorm(12)
        self.blocks = nn.ModuleList(self.Block() for _ in range(4))
        self.head = nn.Linear(12, WORDS)

    def forward(self, input_ids):
        hidden = self.norm(self.table(input_ids) + self.begin)
        for block in self.blocks:
            hidden = block(hidden, factor=input_ids[..., None] / WORDS)[0]
        return self.head(hidden)


class Outside(nn.Module):
    """Does what no chain does: "adds" up outside of its blocks, "skips" to behind them or "gives" to each what stands before,
    or "hides" from autograd what they return."""

    def __init__(self, does):
        super().__init__()
        self.does = does
        self.table = nn.Embedding(WORDS, 12)
        self.blocks = nn.ModuleList((nn.Bilinear(12, 12, 12) if does == "gives" else nn.Linear(12, 12)) for _ in range(3))
        self.head = nn.Linear(12, WORDS)

    def forward(self, input_ids):
        first = hidden = self.table(input_ids)
        for block in self.blocks:
            if self.does == "adds":
                hidden = hidden + block(hidden)
            elif self.does == "hides":
                hidden = checkpoint(block, hidden, use_reentrant=True)
            else:
                hidden = block(hidden, first) if self.does == "gives" else block(hidden)
        return self.head(hidden + first if self.does == "skips" else hidden)


def make(name):
    torch.manual_seed(3)
    if name in ("sequence", "pairs"):
        return {"sequence": Sequence, "pairs": Pairs}[name]().double()
    if name == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM
        return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
                                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
                                            bos_token_id=None, eos_token_id=None)).double()
    from transformers import GPT2Config, GPT2LMHeadModel
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=3, n_head=2,
                                      bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0,
                                      attn_pdrop=0.0))
    if name == "lora":
        from peft import LoraConfig, get_peft_model
        gpt2 = get_peft_model(gpt2, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM",
                                               init_lora_weights=False))
    return gpt2.double()


def batches(name):
    """Rows of unequal numbers of tokens, padded on the left or on the right."""
    generator = torch.Generator().manual_seed(4)
    made = []
    for samples in SAMPLES:
        ids = torch.randint(0, WORDS, (samples, LENGTH), generator=generator)
        mask = torch.ones_like(ids)
        for number, row in enumerate(mask):
            row[LENGTH - number % 5:] = 0
        batch = {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100)}
        made.append(batch | ({"attention_mask": mask} if name in ("gpt2", "llama", "lora") else {}))
    return made


def make_optimizer(model):
    flat = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    rest = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    return torch.optim.AdamW([{"params": rest}, {"params": flat, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1, eps=1e-5)


def loss_of(model, batch):
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    outputs = model(inputs["input_ids"]) if isinstance(model, nn.Sequential) else model(**inputs)
    return causal_loss_sum(outputs, batch["labels"]) / causal_weight(batch["labels"])


def alone(name):
    """What one process learns: losses, norms, and both states. Two batches are a step."""
    model = make(name)
    optimizer = make_optimizer(model)
    losses, norms = [], []
    for number, batch in enumerate(batches(name)):
        loss = loss_of(model, batch)
        (loss / 2).backward()
        losses.append(loss.item())
        if number % 2 == 1:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return [losses, norms, model.state_dict(), optimizer.state_dict()["state"]]


def as_lists(state):
    return {name: value.tolist() for name, value in state.items()}


def call(name, batch):
    """What a module takes: nn.Sequential has no names."""
    return ((batch["input_ids"],), {"labels": batch["labels"]}) if name == "sequence" else ((), batch)


def part_of(batch, replica, replicas):
    """Unequal parts."""
    samples = len(batch["labels"])
    ends = [0, samples // 3, samples] if replicas == 2 else [0, samples]
    return {key: value[ends[replica]:ends[replica + 1]] for key, value in batch.items()}


def staged_training(name, options):
    """The same in stages. Returns what rank 0 knows, and of how many parameters this rank has the values."""
    model = make(name)
    if dist.get_rank() > 0:  # rank 0's count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    if "checkpointing" in options:
        model.gradient_checkpointing_enable({"use_reentrant": options.pop("checkpointing") == "reentrant"})
    optimizer = make_optimizer(model)
    staged = bimetal.pipeline.stages(model, optimizer, **options)
    replicas = staged.replicas
    losses, norms = [], []
    for number, batch in enumerate(batches(name)):
        args, given = call(name, part_of(batch, staged.replica, replicas))
        before = staged.evaluate(*args, **given).item()
        loss = staged.forward_backward(*args, scale=0.5, **given).item()
        assert abs(before - loss) < 1e-12, (before, loss)
        losses.append(loss)
        if number % 2 == 1:
            norms.append(staged.clip_grad_norm_(0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    here = sum(parameter.numel() for parameter in model.parameters() if parameter.device.type != "meta")
    learnt = staged.optimizer_state_dict()
    return [losses, norms, as_lists(staged.state_dict()),
            learnt and {place: as_lists(state) for place, state in learnt["state"].items()}, here, repr(staged)]


def several(calls):
    return [globals()[name](*arguments) for name, *arguments in calls]


# By ranks: what is trained, and how. Units of gpt2 and llama: embedding, three blocks, head; of pairs one block more.
TRAININGS = {
    2: [("gpt2", {"cuts": [3], "schedule": "gpipe", "micro_batches": 3}), ("gpt2", {"cuts": [1], "micro_batches": 4}),
        ("gpt2", {"cuts": [4], "schedule": "zero_bubble"}), ("llama", {"cuts": [2], "micro_batch": 3}),
        ("llama", {"cuts": [1, 2, 3], "schedule": "interleaved", "chunks": 2, "micro_batches": 4}),
        ("gpt2", {"cuts": [1, 2, 4], "schedule": "interleaved", "chunks": 2, "micro_batches": 2,
                  "checkpointing": "saved tensors"}),
        ("gpt2", {"cuts": [2], "schedule": "zero_bubble", "checkpointing": "saved tensors"}),
        ("llama", {"cuts": [2], "checkpointing": "reentrant"}), ("gpt2", {}),
        ("lora", {"cuts": [2], "micro_batches": 3}),
        ("sequence", {"cuts": [2]}), ("pairs", {"cuts": [3], "schedule": "zero_bubble"})],
    3: [("gpt2", {"cuts": [1, 3], "micro_batches": 4}), ("llama", {"cuts": [3, 4], "schedule": "gpipe", "micro_batches": 5}),
        ("llama", {"cuts": [1, 2], "schedule": "zero_bubble", "micro_batches": 40}), ("sequence", {"cuts": [1, 6]}),
        ("pairs", {"cuts": [1, 5]})],
    4: [("gpt2", {"stages": 2, "cuts": [2]}), ("llama", {"stages": 2, "schedule": "zero_bubble"})],
}


def distance(found, reference):
    assert found.keys() == reference.keys(), (found.keys(), reference.keys())
    return max(models.difference([value], [reference[name].double()]) for name, value in found.items())


@unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
class Exact(unittest.TestCase):
    references = {}

    def reference(self, name):
        if name not in self.references:
            self.references[name] = alone(name)
        return self.references[name]

    def compare(self, world):
        trainings = [training for training in TRAININGS[world]
                     if training[0] != "lora" or importlib.util.find_spec("peft")]
        results = ranks.on_ranks(world, several, [("staged_training", *training) for training in trainings], timeout=400)
        for number, (name, options) in enumerate(trainings):
            with self.subTest(name, **options):
                losses, norms, state, learnt = self.reference(name)
                of_rank = [rank[number] for rank in results]
                for mine in of_rank:
                    torch.testing.assert_close(mine[:2], [losses, norms], rtol=1e-12, atol=1e-12)
                self.assertLess(distance(of_rank[0][2], state), 1e-12)
                self.assertEqual(set(of_rank[0][3]), {str(place) for place in learnt})
                for place, part in learnt.items():
                    self.assertLess(distance(of_rank[0][3][str(place)], part), 1e-11)
                self.assertEqual([mine[2:4] for mine in of_rank[1:]], [[{}, {}]] * (world - 1))
                every = sum(parameter.numel() for parameter in make(name).parameters())
                for mine in of_rank:
                    self.assertLess(mine[4], every, mine[5])

    def test_two_stages(self):
        self.compare(2)

    def test_three_stages(self):
        self.compare(3)

    def test_two_stages_with_two_replicas(self):
        self.compare(4)


def resumed():
    """Two batches in stages, both states into other stages, two more; then the folder of Hugging Face's."""
    def steps(staged, optimizer, numbers):
        for number in numbers:
            staged.forward_backward(**batches("gpt2")[number], scale=0.5)
        staged.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()

    model = make("gpt2")
    optimizer = make_optimizer(model)
    staged = bimetal.pipeline.stages(model, optimizer, cuts=[2])
    steps(staged, optimizer, [0, 1])
    weights, learnt = staged.state_dict(None), staged.optimizer_state_dict(None)
    torch.manual_seed(99)
    other = type(model)(model.config).double()
    optimizer = make_optimizer(other)
    staged = bimetal.pipeline.stages(other, optimizer, cuts=[3])
    staged.load_state_dict(weights)
    staged.load_optimizer_state_dict(learnt)
    steps(staged, optimizer, [2, 3])
    state = staged.state_dict()
    if dist.get_rank() > 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        other.save_pretrained(folder, state_dict=state)
        return as_lists(type(model).from_pretrained(folder, dtype=torch.float64).state_dict())


class Slow(nn.Module):
    """Takes four times as long on rank 1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        time.sleep(0.002 * (4 if dist.get_rank() == 1 else 1))
        return self.layer(x)


def measured():
    model = nn.Sequential(*[Slow() for _ in range(10)])
    sample = (torch.ones(2, 4), torch.ones(2, 4))
    staged = bimetal.pipeline.stages(model, sample=sample, loss_sum=lambda outputs, targets: (outputs - targets).square().sum())
    untouched = all(parameter.grad is None for parameter in model.parameters())
    loss = staged.forward_backward(sample[0], targets=sample[1])
    return staged.begins, untouched, loss.isfinite().item()


class Breaks(nn.Module):
    """Raises for batches that say so, in forward or in backward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if (x[0] == 7).all() and dist.get_rank() == 1:
            raise ValueError("sevens are not for me")
        if (x[0] == 8).all() and dist.get_rank() == 1:
            x.register_hook(lambda _: 1 / 0)
        return self.layer(x)


def no_loss_of_nines(outputs, targets):
    if (targets == 9).all():
        raise ValueError("nines have no loss")
    return outputs.sum()


def failing():
    """A batch fails on one stage: all are told, keep what gradients they had, and go on."""
    torch.manual_seed(1)
    whole = nn.Sequential(nn.Identity(), Breaks(), nn.Identity(), nn.Linear(4, 4))
    nn.init.eye_(whole[1].layer.weight)
    staged = bimetal.pipeline.stages(whole, cuts=[1, 2], micro_batches=4, loss_sum=no_loss_of_nines)
    good = torch.ones(4, 4, requires_grad=True)
    staged.forward_backward(good, targets=good)
    before = [parameter.grad.clone() for parameter in whole.parameters() if parameter.grad is not None]
    expected = staged.evaluate(good, targets=good)
    for call, number, culprit, kind, text in ((staged.forward_backward, 7.0, 1, ValueError, "sevens"),
                                              (staged.forward_backward, 8.0, 1, ZeroDivisionError, "division"),
                                              (staged.forward_backward, 9.0, 2, ValueError, "nines"),
                                              (staged.evaluate, 7.0, 1, ValueError, "sevens"),
                                              (staged.evaluate, 9.0, 2, ValueError, "nines")):
        bad = torch.full((4, 4), number, requires_grad=True)
        if dist.get_rank() == culprit:
            ranks.raises(kind, lambda call=call, bad=bad: call(bad, targets=bad), text)
        else:
            told = ranks.raises(bimetal.Error, lambda call=call, bad=bad: call(bad, targets=bad),
                                f"stage {culprit} of 3 (rank {culprit}) has failed")
            assert (told.code, told.rank) == ("aborted", culprit)
        assert torch.equal(staged.evaluate(good, targets=good), expected)
        after = [parameter.grad for parameter in whole.parameters() if parameter.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return staged.forward_backward(good, targets=good).isfinite().item()


def refusals():
    """What cannot work ends with advice, on every rank."""
    stages = bimetal.pipeline.stages

    def refused(call, code, *fragments):
        error = ranks.raises(bimetal.Error, call, *fragments)
        assert error.code == code, (error.code, error)

    refused(lambda: stages(make("pairs"), cuts=list(range(1, 8)), schedule="interleaved", chunks=4), "invalid_argument",
            "6 units cannot be cut into 8 pieces: take at most 6 stages")
    refused(lambda: stages(make("pairs"), cuts=[9]), "invalid_argument", "cuts = [9]", "1 to 5")
    refused(lambda: stages(make("pairs"), cuts=[1, 2]), "invalid_argument", "give the 1 units")
    refused(lambda: stages(make("pairs"), stages=3), "invalid_argument", "3 stages for 2 ranks")
    refused(lambda: stages(make("pairs"), schedule="2f2b"), "invalid_argument", "2f2b", "zero_bubble")
    refused(lambda: stages(make("pairs"), chunks=2), "invalid_argument", "interleaved")
    refused(lambda: stages(make("pairs"), blocks="head"), "invalid_argument", "head is a Linear", "blocks=")
    refused(lambda: stages(nn.Bilinear(2, 2, 2)), "invalid_argument", "Bilinear has no chain of blocks", "one after the other")
    refused(lambda: stages(nn.Sequential(*[nn.Linear(2, 2)] * 2)), "unsupported", "a block twice")
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2 + dist.get_rank()))
    refused(lambda: stages(other), "call_mismatch", "1.weight")
    for name, value in (("micro_batches", 0), ("micro_batch", -1)):
        refused(lambda given={name: value}: stages(make("pairs"), cuts=[2], **given), "invalid_argument",
                f"{name} = {value}", "at least 1")
    unlike = {"cuts": ([2], [3]), "schedule": ("1f1b", "gpipe"), "micro_batches": (2, 3), "micro_batch": (None, 2)}
    for name, values in unlike.items():
        given = {"cuts": [2], name: values[dist.get_rank()]}
        refused(lambda given=given: stages(make("pairs"), **given), "call_mismatch",
                f"rank 1 calls stages() with {name} = {values[1]}, rank 0 with {values[0]}")
    refused(lambda: stages(make("pairs"), cuts=[[2], None][dist.get_rank()]), "call_mismatch", "cuts = None")

    batch = batches("pairs")[0]
    staged = stages(make("pairs"), cuts=[2])
    refused(lambda: staged.forward_backward(input_ids=batch["input_ids"]), "invalid_argument", "neither labels nor targets")
    for other in (batches("pairs")[dist.get_rank()], batch | {"input_ids": (batch["input_ids"] + dist.get_rank()) % WORDS}):
        refused(lambda other=other: staged.forward_backward(**other), "call_mismatch", "stage 1 of 2 (rank 1) has another batch",
                "same seed")
    nothing = batch | {"labels": torch.full_like(batch["labels"], -100)}
    refused(lambda: staged.forward_backward(**nothing), "invalid_argument", "weight is 0")
    with torch.no_grad():
        refused(lambda: staged.forward_backward(**batch), "invalid_argument", "no_grad")
    refused(lambda: staged.module(batch["input_ids"]), "invalid_argument", "on another stage")
    refused(staged.optimizer_state_dict, "invalid_argument", "no optimizer")
    staged.forward_backward(**batch)  # nothing is lost

    def not_a_chain(does, culprit, code, text):
        wrong = stages(Outside(does), cuts=[2])
        mine = dist.get_rank() == culprit
        refused(lambda: wrong.forward_backward(**batch), code if mine else "aborted", text if mine else f"rank {culprit}")

    not_a_chain("adds", 0, "unsupported", "computes with what a block has returned")
    not_a_chain("hides", 0, "unsupported", "use_reentrant=False")
    not_a_chain("gives", 1, "unsupported", "otherwise than by their first argument")
    not_a_chain("skips", 1, "not_finite", "what it has computed before them")
    return True


def nested():
    """Targets in a tuple and a dict are cut, too, and told apart."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    whole = copy.deepcopy(model)
    inputs = torch.randn(7, 3, dtype=torch.float64)
    targets = (torch.randn(7, 2, dtype=torch.float64), {"counts": torch.arange(7), "factor": torch.tensor(2.0)})

    def loss_sum(outputs, targets):
        wanted, more = targets
        return ((outputs - wanted).square().sum(1) * more["counts"]).sum() * more["factor"]

    staged = bimetal.pipeline.stages(model, cuts=[1], micro_batches=3, loss_sum=loss_sum)
    loss = staged.forward_backward(inputs, targets=targets)
    torch.testing.assert_close(loss, loss_sum(whole(inputs), targets) / 7, rtol=1e-12, atol=1e-12)
    targets[1]["counts"] += dist.get_rank()
    error = ranks.raises(bimetal.Error, lambda: staged.forward_backward(inputs, targets=targets), "another batch")
    assert error.code == "call_mismatch", error
    return True


def in_low_precision():
    """Within autocast blocks compute in bfloat16, and backward does without."""
    model, plain = make("llama").float(), make("llama").float()
    staged = bimetal.pipeline.stages(model, cuts=[3])
    kinds = set()
    own = model.model.layers[0 if dist.get_rank() == 0 else 2]
    own.self_attn.q_proj.register_forward_hook(lambda _, __, output: kinds.add(str(output.dtype)))
    own.self_attn.q_proj.weight.register_hook(lambda _: kinds.add(str(torch.is_autocast_enabled("cpu"))))
    batch = batches("llama")[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = staged.forward_backward(**batch)
        torch.testing.assert_close(loss.float(), loss_of(plain, batch), rtol=5e-3, atol=0)
        assert torch.is_autocast_enabled("cpu")
    return sorted(kinds)


def killed():
    """A rank that is killed in the middle of a batch."""
    batch = {"input_ids": torch.ones(8, 4), "targets": torch.ones(8, 4)}
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    staged = bimetal.pipeline.stages(model, cuts=[1, 2], micro_batches=4,
                                     loss_sum=lambda outputs, targets: outputs.sum())
    staged.forward_backward(batch["input_ids"], targets=batch["targets"])
    if dist.get_rank() == 1:
        passed = []

        def end(*_):
            passed.append(1)
            if len(passed) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        model[1].register_forward_hook(end)
    own = [parameter for parameter in model.parameters() if parameter.grad is not None]
    before = [parameter.grad.clone() for parameter in own]
    error = ranks.raises(bimetal.Error, lambda: staged.forward_backward(batch["input_ids"], targets=batch["targets"]),
                         "stage 1 of 3 (rank 1)")
    assert error.code == "peer_lost" and error.rank == 1, error
    assert own and all(torch.equal(parameter.grad, gradient) for parameter, gradient in zip(own, before, strict=True))
    return True


class Behaviour(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_it_goes_on_in_other_stages(self):
        found = ranks.on_ranks(2, resumed)[0]
        self.assertLess(distance(found, alone("gpt2")[2]), 1e-12)

    def test_a_slow_device_gets_fewer_units(self):
        results = ranks.on_ranks(2, measured)
        for begins, untouched, finite in results:
            self.assertEqual(begins, results[0][0])
            self.assertIn(begins[1], (7, 8, 9))
            self.assertTrue(untouched and finite)

    def test_a_batch_that_fails_on_one_stage(self):
        self.assertEqual(ranks.on_ranks(3, failing), [True] * 3)

    def test_targets_of_several_tensors(self):
        self.assertEqual(ranks.on_ranks(2, nested), [True] * 2)

    @unittest.skipUnless(importlib.util.find_spec("peft"), "peft is not installed")
    def test_no_keys_and_values_are_kept(self):
        batch = {"input_ids": torch.ones(2, 4), "labels": torch.ones(2, 4)}
        for name, said in (("gpt2", {"use_cache": False}), ("lora", {"use_cache": False}), ("pairs", {})):
            given = Learning(causal_loss_sum, causal_weight).batch(make(name), (), batch).kwargs
            self.assertEqual({key: value for key, value in given.items() if key != "input_ids"}, said, name)

    def test_refusals(self):
        self.assertEqual(ranks.on_ranks(2, refusals), [True] * 2)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_low_precision(self):
        self.assertEqual(ranks.on_ranks(2, in_low_precision), [["False", "torch.bfloat16"]] * 2)

    def test_a_killed_rank_is_named_with_its_stage(self):
        with ranks.start(3, killed) as job:
            statuses = job.wait(60)
            self.assertEqual(statuses, [0, -9, 0], job.text())


if __name__ == "__main__":
    ranks.main(globals())
