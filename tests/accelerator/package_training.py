"""Checks of test_package.py: training with ranks on a device, beside one process on the CPU with the whole batch."""

import contextlib
import copy
import importlib.util
import itertools
import pathlib
import tempfile
from unittest import SkipTest

import models
import sequences
import test_balance
import torch
import torch.distributed as dist
from package_calls import in_stream
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate

import bimetal

STEPS = 5


def moved(lab, given):
    """Tensors on the rank's device, real numbers in the type that all devices have."""
    if isinstance(given, torch.Tensor):
        return given.to(lab.device, lab.real if given.is_floating_point() else given.dtype)
    if isinstance(given, dict):
        return {name: moved(lab, value) for name, value in given.items()}
    return type(given)(moved(lab, part) for part in given)


def learn(model, batch_of, micro_batches=1):
    """`batch_of`: from a step to inputs and targets."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        parts = list(zip(*(part.chunk(micro_batches) for part in batch_of(step)), strict=True))
        for part in parts:
            with model.no_sync() if part is not parts[-1] else contextlib.nullcontext():
                (models.loss_of(model, *part) / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def own_batches(lab, name):
    return lambda step: moved(lab, models.batch(name, step, lab.rank))


def alone(lab, name):
    """On the CPU, with what all ranks have."""
    def whole(step):
        inputs, targets = zip(*(models.batch(name, step, rank) for rank in range(lab.size)), strict=True)
        inputs = torch.cat(inputs)
        return inputs.to(lab.real) if inputs.is_floating_point() else inputs, torch.cat(targets)
    return learn(lab.make(name), whole)


def parallel(lab, model, **options):
    return DistributedDataParallel(model.to(lab.device), process_group=lab.group, **({"bucket_cap_mb": 0.02} | options))


def ddp(lab):
    ways = [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 25}]
    ways += [{"device_ids": [lab.device]}] if lab.device.type == "cuda" else []
    for name, options in itertools.product(("cnn", "gpt"), ways if lab.alike else ways[:5]):
        model = learn(parallel(lab, lab.make(name), **options), own_batches(lab, name))
        lab.same_model(model.module, alone(lab, name), f"{name} {options}")
    with in_stream(torch.cuda.Stream() if lab.device.type == "cuda" else None):
        model = learn(parallel(lab, lab.make("gpt")), own_batches(lab, "gpt"))
        lab.same_model(model.module, alone(lab, "gpt"), "gpt on a stream of its own")


def micro_batches(lab):
    model = learn(parallel(lab, lab.make("gpt")), own_batches(lab, "gpt"), micro_batches=2)
    lab.same_model(model.module, alone(lab, "gpt"), "gpt in micro-batches")


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.begin, self.branches = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, branch):
        return self.branches[branch](torch.tanh(self.begin(x)))


def unused_parameters(lab):
    """Each rank has a branch of its own, and nobody the last one."""
    torch.manual_seed(0)
    reference = Branches().to(lab.real)
    model = parallel(lab, copy.deepcopy(reference), find_unused_parameters=True)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(lab.real)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, reference)]
    for _ in range(STEPS):
        model(x.to(lab.device), lab.rank).square().mean().backward()
        (sum(reference(x, rank).square().mean() for rank in range(lab.size)) / lab.size).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    lab.same_model(model.module, reference, "branches")


def hooks(lab):
    """torch's own that make gradients shorter. Ranks must not differ at all; from the reference they do, by the rounding."""
    reference = alone(lab, "gpt")
    ways = {"float16": (None, default_hooks.fp16_compress_hook, 1e-2)}
    if torch.version.cuda:  # or torch refuses it
        ways["bfloat16"] = (None, default_hooks.bf16_compress_hook, 5e-2)
    if importlib.util.find_spec("numpy") and (lab.alike or not torch.cuda.is_available()):  # it needs that, and waits for cards of CPUs
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        state = powerSGD_hook.PowerSGDState(lab.group, matrix_approximation_rank=64, start_powerSGD_iter=2, min_compression_rate=0.1)
        ways["PowerSGD"] = (state, powerSGD_hook.powerSGD_hook, 1e-2)
    for name, (state, hook, tolerance) in ways.items():
        # With several buckets torch's hook is at times wrong on a card, probably its own fault: docs/accelerators.md.
        few = {"bucket_cap_mb": 25} if name == "PowerSGD" and lab.device.type == "cuda" else {}
        model = parallel(lab, lab.make("gpt"), **few)
        model.register_comm_hook(state or lab.group, hook)
        learn(model, own_batches(lab, "gpt"))
        lab.same_model(model.module, reference, name, tolerance)
        for label, one in model.module.named_parameters() if lab.alike else ():
            first = one.detach().clone()
            dist.broadcast(first, 0, group=lab.group)
            lab.same(one, first, f"{name}: {label} of this rank beside rank 0's")


def samples(lab):
    """BalancedBatchSampler and its hook, with shares that are given and that follow the speed."""
    def learnt(model, group, device, balance, weights, after=lambda sampler: None):
        sampler = bimetal.BalancedBatchSampler(test_balance.SAMPLES, test_balance.BATCH, group=group, seed=9, balance=balance,
                                               weights=weights)
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(sampler, bimetal.sample_exact_hook)
        rows = [[part.to(lab.real) if part.is_floating_point() else part for part in row] for row in test_balance.dataset()]
        loader = DataLoader(rows, batch_sampler=sampler, collate_fn=lambda batch: [part.to(device) for part in default_collate(batch)])
        _, _, counts = test_balance.train(model, sampler, loader, lambda: after(sampler))
        return model, counts

    reference, _ = learnt(lab.make("cnn"), lab.solo, "cpu", "equal", [], lambda sampler: sampler.finish_step(0.01))
    for balance, weights in (("fixed", [3, 1]), ("fixed", [0, 1]), ("auto", [])):
        model, counts = learnt(parallel(lab, lab.make("cnn")), lab.group, lab.device, balance, weights)
        lab.same_model(model.module, reference, f"{balance} {weights}, in the end {counts[-2]} samples")


def tokens(lab):
    if not lab.double:
        raise SkipTest("the model is in float64")
    sampler = bimetal.BalancedBatchSampler(sequences.SAMPLES, sequences.BATCH, group=lab.solo, seed=9)
    reference = sequences.gpt("own")
    sequences.train(reference, sampler, after_backward=lambda: sampler.finish_step(0.01))
    for micro_batch in (None, 5):
        sampler = bimetal.BalancedBatchSampler(sequences.SAMPLES, sequences.BATCH, group=lab.group, seed=9, balance="fixed",
                                               weights=[3, 1])
        model = parallel(lab, sequences.gpt("own"))
        model.register_comm_hook(sampler, bimetal.token_exact_hook)
        model.register_forward_pre_hook(lambda _, given: moved(lab, given))
        sequences.train(model, sampler, micro_batch)
        lab.same_model(model.module, reference, f"tokens, micro-batches of {micro_batch}")


def scaler(lab):
    """float16 under autocast: one rank's overflow makes all skip the step and halve the scale."""
    if lab.device.type == "mps":
        raise SkipTest("float16's scaler is for CUDA and CPUs here")
    torch.manual_seed(0)
    model = parallel(lab, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.amp.GradScaler(lab.device.type, init_scale=1024.0, growth_interval=100)
    x, losses, scales = torch.linspace(-1, 1, 64).reshape(8, 8).to(lab.device), [], []
    for step in range(6):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.autocast(lab.device.type, torch.float16):
            loss = (model(x) - 1).float().square().mean()
        losses.append(loss.item())
        scale.scale(loss * (float("inf") if step == 2 and lab.rank == 1 else 1)).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        scales.append(scale.get_scale())
        kept = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert kept == (step == 2), f"step {step}: parameters {'did not move' if kept else 'moved'}"
    assert scales == [1024.0] * 2 + [512.0] * 4 and losses[-1] < losses[0], (scales, losses)


def fsdp(lab):
    if not lab.alike:
        raise SkipTest("a mesh is of one kind of device")
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise SkipTest("torch has no fully_shard before 2.6") from None
    from torch.distributed.device_mesh import DeviceMesh
    mesh, model = DeviceMesh.from_group(lab.group, lab.device.type), lab.make("gpt").to(lab.device)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    learn(model, own_batches(lab, "gpt"))
    for (name, one), other in zip(model.named_parameters(), alone(lab, "gpt").parameters(), strict=True):
        lab.same(one.full_tensor(), other, f"fully_shard: {name}", 1e-10 if lab.double else 1e-4)


def stages_of_torch(lab):
    """torch.distributed.pipelining, whose messages go between unlike devices."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).to(lab.real)
    x, y = torch.linspace(-1, 1, 48).reshape(8, 6).to(lab.real), torch.linspace(-1, 1, 24).reshape(8, 3).to(lab.real)
    part = copy.deepcopy(whole[:2] if lab.rank == 0 else whole[2:]).to(lab.device)
    stage = PipelineStage(part, lab.rank, lab.size, lab.device, group=lab.group)
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        part.zero_grad()  # torch divides by the micro-batches what is there, too
        whole.zero_grad()
        nn.functional.mse_loss(whole(x), y).backward()
        schedule.step(*([x.to(lab.device)] if lab.rank == 0 else []), **({"target": y.to(lab.device)} if lab.rank else {}))
    for (name, one), other in zip(part.named_parameters(), (whole[:2] if lab.rank == 0 else whole[2:]).parameters(), strict=True):
        lab.same(one.grad, other.grad, f"gradient of {name}", 1e-10 if lab.double else 1e-4)


def saved(lab):
    """On the device, and read on the CPU: by torch.save and by torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp
    if not importlib.util.find_spec("numpy"):
        raise SkipTest("torch's object collectives need numpy")
    model = learn(parallel(lab, lab.make("gpt")), own_batches(lab, "gpt")).module
    with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
        where = [folder]
        dist.broadcast_object_list(where, 0, group=lab.group)
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{where[0]}/parts", process_group=lab.group)
        if lab.rank == 0:
            torch.save(model.state_dict(), pathlib.Path(folder, "whole.pt"))
        dist.barrier(group=lab.group)
        for kind in ("parts", "whole"):
            read = {name: torch.zeros_like(value, device="cpu") for name, value in model.state_dict().items()}
            if kind == "parts":
                dcp.load({"model": read}, checkpoint_id=f"{where[0]}/parts", process_group=lab.group)
            else:
                read = torch.load(f"{where[0]}/whole.pt", map_location="cpu", weights_only=True)
            for name, value in model.state_dict().items():
                own = lab.alike or (kind == "whole" and lab.rank == 0)  # of parts each rank has written some
                lab.same(read[name], value, f"{name} of {kind}", 0.0 if own else 1e-10 if lab.double else 1e-4)
        dist.barrier(group=lab.group)  # before the folder goes
