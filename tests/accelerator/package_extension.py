"""Checks of test_package.py: what only the torch library has, with ranks on a device, beside one process on the CPU."""

import copy
from unittest import SkipTest

import chains
import parted_models
import test_zero
import torch
import torch.distributed as dist
from package_training import moved
from torch import nn
from torch.utils.data import DataLoader

import bimetal
from bimetal import _torch_check


def need_torch_library(lab):
    if not _torch_check.fits():
        raise SkipTest("it needs the torch library")
    if not lab.double:
        raise SkipTest("the models are in float64")


def same_number(lab, got, expected, what):
    lab.same(got.reshape(()).double(), torch.tensor(expected, dtype=torch.float64), what, 1e-10)


def zero(lab):
    need_torch_library(lab)
    data, reference = test_zero.make_data("mlp"), test_zero.make("mlp")
    optimizer = test_zero.make_optimizer("adamw", reference)
    sampler = bimetal.BalancedBatchSampler(data, test_zero.BATCH, group=lab.solo)
    for inputs, targets in DataLoader(data, batch_sampler=sampler):
        test_zero.loss_of(reference, inputs, targets).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        sampler.finish_step()
        optimizer.step()
        optimizer.zero_grad()
    for level in (1, 2, 3):
        model = test_zero.make("mlp").to(lab.device)
        optimizer = test_zero.make_optimizer("adamw", model)
        sampler = bimetal.BalancedBatchSampler(data, test_zero.BATCH, group=lab.group, balance="fixed", weights=[1, 2])
        sharded = bimetal.zero.shard(model, optimizer, level, shards=[3, 1], sampler=sampler, group=lab.group)
        for batch in DataLoader(data, batch_sampler=sampler):
            test_zero.loss_of(model, *moved(lab, batch)).backward()
            sharded.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
        for name, value in sharded.state_dict().items():
            if name != "calls":
                lab.same(value, reference.state_dict()[name], f"level {level}: {name}", 1e-10)


def pipeline(lab):
    need_torch_library(lab)
    for name, cuts, schedule in (("sequence", [2], "1f1b"), ("pairs", [3], "zero_bubble"), ("pairs", None, "gpipe")):
        losses, norms, state, _ = chains.alone(name)
        model = chains.make(name).to(lab.device)
        optimizer = chains.make_optimizer(model)
        given = [moved(lab, batch) for batch in chains.batches(name)]
        arguments = [((batch.pop("input_ids"),), {"labels": batch["labels"]}) if name == "sequence" else ((), batch) for batch in given]
        sample = {} if cuts else {"sample": given[0]}
        staged = bimetal.pipeline.stages(model, optimizer, cuts=cuts, schedule=schedule, group=lab.group, **sample)
        for number, (args, named) in enumerate(arguments):
            same_number(lab, staged.forward_backward(*args, scale=0.5, **named), losses[number], f"{name}: loss {number}")
            if number % 2 == 1:
                same_number(lab, staged.clip_grad_norm_(0.5), norms[number // 2], f"{name}: norm {number}")
                optimizer.step()
                optimizer.zero_grad()
        for key, value in staged.state_dict().items():
            lab.same(value, state[key], f"{name}, {staged}: {key}", 1e-10)


def tensor_parts(lab):
    need_torch_library(lab)
    losses, norms, state, _ = chains.learnt(parted_models.make("plain"), parted_models.batches("plain"))
    model = parted_models.make("plain").to(lab.device)
    optimizer = chains.make_optimizer(model)
    parted = bimetal.tensor.parts(model, optimizer, weights=[3, 1], group=lab.group, **parted_models.plan_of("plain"))
    for number, batch in enumerate(parted_models.batches("plain")):
        loss = chains.loss_of(model, moved(lab, batch))
        (loss / 2).backward()
        same_number(lab, loss, losses[number], f"loss {number}")
        if number % 2 == 1:
            same_number(lab, parted.clip_grad_norm_(0.5), norms[number // 2], f"norm {number}")
            optimizer.step()
            optimizer.zero_grad()
    for key, value in parted.state_dict().items():
        lab.same(value, state[key], key, 1e-10)


def too_little_memory(lab):
    """A stage on the device has room for a part of the batch: it is repeated in more micro-batches."""
    need_torch_library(lab)
    torch.manual_seed(0)
    whole = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))
    x = torch.randn(1 << 19, 64)  # 128 MiB, and twice that is kept of each layer
    model = copy.deepcopy(whole).to(lab.device)
    staged = bimetal.pipeline.stages(model, cuts=[6], micro_batches=1, group=dist.new_group(),
                                     loss_sum=lambda y, target: (y - target).square().sum())
    if lab.device.type == "cuda":
        torch.cuda.empty_cache()
        whole_card = torch.cuda.get_device_properties(lab.device).total_memory
        torch.cuda.set_per_process_memory_fraction((1 << 30) / whole_card, lab.device)
    loss = staged.forward_backward(x.to(lab.device), targets=torch.zeros_like(x, device=lab.device))
    with torch.no_grad():
        expected = sum(whole(part).square().sum() for part in x.split(1 << 16)) / len(x)
    lab.same(loss.reshape(()).float(), expected, "loss", 1e-4)
    if lab.device.type == "cuda":
        assert torch.cuda.memory_stats(lab.device)["num_ooms"] > 0, "it had memory enough, which tests nothing"
