"""bimetal.pipeline.stages: what goes wrong, what is measured, and what goes on elsewhere."""

import copy
import datetime
import os
import signal
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from chains import WORDS, Outside, batches, loss_of, make
from ranks import refused
from torch import nn

import bimetal
from bimetal.pipeline.loss import causal_loss_sum, causal_weight
from bimetal.pipeline.staged import Learning


class Slow(nn.Module):
    """Takes four times as long on rank 1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        time.sleep(0.008 * (4 if dist.get_rank() == 1 else 1))
        return self.layer(x)


def measured(micro_batches=None):
    model = nn.Sequential(*[Slow() for _ in range(10)])
    sample = (torch.ones(2, 4), torch.ones(2, 4))
    staged = bimetal.pipeline.stages(model, sample=sample, micro_batches=micro_batches,
                                     loss_sum=lambda outputs, targets: (outputs - targets).square().sum())
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


class Stuck(nn.Module):
    """On the last stage forward takes longer than anybody waits."""

    def forward(self, x):
        if dist.get_rank() == 2 and (x == 7).all():
            dist.distributed_c10d._get_default_store().wait(["0 is told", "1 is told"])
        return x * 1


def stuck():
    """All name the last stage, which the first one waits for by way of the second one."""
    dist.init_process_group("bimetal", timeout=datetime.timedelta(seconds=4))
    whole = nn.Sequential(nn.Linear(4, 4), nn.Identity(), Stuck())
    nn.init.eye_(whole[0].weight)
    nn.init.zeros_(whole[0].bias)
    staged = bimetal.pipeline.stages(whole, cuts=[1, 2], micro_batches=1, loss_sum=lambda outputs, targets: outputs.sum())
    batch = torch.ones(4, 4)
    staged.forward_backward(batch, targets=batch)
    told = ranks.raises(bimetal.Error, lambda: staged.forward_backward(7 * batch, targets=batch))
    dist.distributed_c10d._get_default_store().set(f"{dist.get_rank()} is told", "")
    return told.code, told.rank, str(told)


class Narrow(nn.Module):
    """Has no memory for more than `room` samples, in forward or in backward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.room, self.where = 100, ""

    def forward(self, x):
        if len(x) > self.room:
            if self.where == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            if self.where == "backward" and x.requires_grad:
                x.register_hook(self.fail)
        return self.layer(x)

    def fail(self, _):
        raise MemoryError


def out_of_memory():
    """A stage runs out of memory: the batch is repeated in more micro-batches, and so go those behind it; or that cannot be."""
    torch.manual_seed(4)
    whole = nn.Sequential(nn.Linear(4, 4), Narrow(), nn.Linear(4, 4)).double()
    inputs, targets = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)

    def loss_sum(outputs, targets):
        return (outputs - targets).square().sum()

    def staged_with_memory_for(samples, where):
        model = copy.deepcopy(whole)
        model[1].room, model[1].where = samples, where
        sizes = []
        model[dist.get_rank()].register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        return model, bimetal.pipeline.stages(model, cuts=[1], micro_batches=2, loss_sum=loss_sum), sizes

    expected = loss_sum(whole(inputs), targets) / 7
    expected.backward()
    gradients = dict(whole.named_parameters())
    for where in ("forward", "backward"):
        model, staged, sizes = staged_with_memory_for(2, where)
        torch.testing.assert_close(staged.forward_backward(inputs, targets=targets), expected.detach(), rtol=1e-12, atol=1e-12)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-12, atol=1e-12)
        sizes.clear()
        torch.testing.assert_close(staged.evaluate(inputs, targets=targets), expected.detach(), rtol=1e-12, atol=1e-12)
        assert sorted(sizes) == [1, 2, 2, 2], sizes
    _, staged, sizes = staged_with_memory_for(2, "forward")
    torch.testing.assert_close(staged.evaluate(inputs, targets=targets), expected.detach(), rtol=1e-12, atol=1e-12)
    assert max(sizes) > 2 and sorted(sizes[-4:]) == [1, 2, 2, 2], sizes
    _, staged, _ = staged_with_memory_for(0, "forward")
    if dist.get_rank() == 1:
        ranks.raises(torch.OutOfMemoryError, lambda: staged.forward_backward(inputs, targets=targets), "2.00 GiB")
    else:
        ranks.raises(bimetal.Error, lambda: staged.forward_backward(inputs, targets=targets), "stage 1 of 2 (rank 1) has failed")
    return True


def refusals():
    """Impossible settings end with advice, on every rank."""
    stages = bimetal.pipeline.stages

    refused(lambda: stages(make("pairs"), cuts=list(range(1, 8)), schedule="interleaved", chunks=4), "invalid_argument",
            "6 units cannot be cut into 8 pieces: stages (times chunks with \"interleaved\") must be at most 6")
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
    refused(lambda: nn.utils.clip_grad_norm_(staged.module.parameters(), 1.0), "unsupported", "stages(…).clip_grad_norm_()")
    refused(staged.module.state_dict, "unsupported", "stages(…).state_dict()", "save_pretrained(folder, state_dict=…)")
    optimizer = torch.optim.SGD((model := make("pairs")).parameters(), lr=0.1)
    stages(model, optimizer, cuts=[2])
    refused(optimizer.state_dict, "unsupported", "stages(…).optimizer_state_dict()")
    refused(model.blocks[2 * (1 - dist.get_rank())].state_dict, "unsupported", "stages(…).state_dict()")

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
    refused(lambda: staged.forward_backward(inputs, targets=targets), "call_mismatch", "another batch")
    return True


class Scaled(nn.Sequential):
    def forward(self, x, scale=1.0, *, targets=0.0):
        return super().forward(x) * scale + targets


def own_keywords():
    """The module's own argument `scale` goes by position; by name it would be ours."""
    torch.manual_seed(2)
    model = Scaled(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    whole = copy.deepcopy(model)
    inputs, wanted = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    staged = bimetal.pipeline.stages(model, cuts=[1], loss_sum=lambda outputs, targets: (outputs - targets).square().sum())
    for call, given, name in ((staged.forward_backward, {"scale": 3.0, "labels": wanted}, "scale"),
                              (staged.forward_backward, {"targets": wanted}, "targets"), (staged.evaluate, {"targets": wanted}, "targets")):
        refused(lambda call=call, given=given: call(inputs, **given), "invalid_argument", f"argument called {name}", "by position")
    expected = (whole(inputs, 3.0) - wanted).square().sum() / 7
    (0.5 * expected).backward()
    torch.testing.assert_close(staged.forward_backward(inputs, 3.0, scale=0.5, labels=wanted), expected.detach(), rtol=1e-12, atol=0)
    here = dist.get_rank()
    torch.testing.assert_close(model[here].weight.grad, whole[here].weight.grad, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(staged.evaluate(inputs, scale=3.0, labels=wanted), expected.detach(), rtol=1e-12, atol=0)
    if here == 0:
        model[0].weight.grad[0, 0] = torch.nan
    assert staged.clip_grad_norm_(1.0).isnan() and model[here].weight.grad.isnan().all()  # as torch's
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
    def test_a_slow_device_gets_fewer_units(self):
        results = ranks.on_ranks(2, measured)
        for begins, untouched, finite in results:
            self.assertEqual(begins, results[0][0])
            self.assertGreater(begins[1], 5)
            self.assertTrue(untouched and finite)

    def test_with_one_micro_batch_a_slow_device_gets_no_more_than_it_must(self):
        self.assertEqual([begins for begins, *_ in ranks.on_ranks(2, measured, 1)], [[0, 9]] * 2)

    def test_a_batch_that_fails_on_one_stage(self):
        self.assertEqual(ranks.on_ranks(3, failing), [True] * 3)

    def test_a_stuck_stage_is_named_and_what_sets_how_long_it_is_waited_for(self):
        for code, rank, text in ranks.on_ranks(3, stuck, backend=None, environment={ranks.LEAVE: "1"})[:2]:
            self.assertEqual((code, rank), ("timeout", 2), text)
            self.assertIn("the timeout of init_process_group() sets", text)
            self.assertNotIn("parallel.timeout_s", text)

    def test_a_stage_without_memory_makes_all_take_smaller_micro_batches(self):
        self.assertEqual(ranks.on_ranks(2, out_of_memory), [True] * 2)

    def test_targets_of_several_tensors(self):
        self.assertEqual(ranks.on_ranks(2, nested), [True] * 2)

    def test_keywords_that_the_module_has_too(self):
        self.assertEqual(ranks.on_ranks(2, own_keywords), [True] * 2)

    @ranks.needs("peft")
    def test_no_keys_and_values_are_kept(self):
        batch = {"input_ids": torch.ones(2, 4), "labels": torch.ones(2, 4)}
        for name, said in (("gpt2", {"use_cache": False}), ("lora", {"use_cache": False}), ("pairs", {})):
            given = Learning(causal_loss_sum, causal_weight).batch(make(name), (), batch).kwargs
            self.assertEqual({key: value for key, value in given.items() if key != "input_ids"}, said, name)

    def test_refusals(self):
        self.assertEqual(ranks.on_ranks(2, refusals), [True] * 2)

    @ranks.needs("transformers")
    def test_low_precision(self):
        self.assertEqual(ranks.on_ranks(2, in_low_precision), [["False", "torch.bfloat16"]] * 2)

    def test_a_killed_rank_is_named_with_its_stage(self):
        with ranks.start(3, killed) as job:
            statuses = job.wait(60)
            self.assertEqual(statuses, [0, -9, 0], job.text())


if __name__ == "__main__":
    ranks.main(globals())
