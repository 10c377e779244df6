"""torch's own model parallelism on the backend, as users have it: parallelize_module (DTensor) on a DeviceMesh, its loss in parts
and sequence parallelism, and torch.distributed.pipelining, beside one process in float64."""

import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                          ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)
from torch.nn import functional as F

WIDTH, TOKENS, BATCH, MICRO_BATCHES = 16, 12, 8, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_model(blocks=3):
    torch.manual_seed(5)
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), *[Block() for _ in range(blocks)], nn.Linear(WIDTH, TOKENS)).double()


def make_batch():
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(TOKENS, (BATCH, 6), generator=generator) for _ in range(2)]


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def alone(steps=3):
    """Losses and parameters of one process."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, targets = make_batch()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def compare(losses, parameters):
    expected_losses, expected = alone(len(losses))
    torch.testing.assert_close(losses, expected_losses, rtol=1e-12, atol=1e-12)
    assert parameters.keys() <= expected.keys() and parameters
    for name, value in parameters.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12, msg=name)


def in_parts(sequence_parallel):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    assert dist.get_backend(mesh.get_group()) == "bimetal"
    model = make_model()
    rows = {"output_layouts": Shard(1)} if sequence_parallel else {}
    plan = {"0": RowwiseParallel(input_layouts=Replicate(), **rows),
            "4": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False,
                                 **({"input_layouts": Shard(1)} if sequence_parallel else {}))}
    for block in "123":
        plan[f"{block}.up"] = ColwiseParallel(**({"input_layouts": Shard(1)} if sequence_parallel else {}))
        plan[f"{block}.down"] = RowwiseParallel(**rows)
        if sequence_parallel:
            plan[f"{block}.norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    inputs, targets = make_batch()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with loss_parallel():
            loss = loss_of(model(inputs), targets)
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item())
    compare(losses, {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach()
                     for name, p in model.named_parameters()})


def train_stages(run, parameters, first, last, source, group=None):
    """Three steps; `first` and `last`: whether this rank has that stage; `source`: the group's rank that has the last
    one."""
    optimizer = torch.optim.SGD(parameters.values(), 0.1, foreach=False)
    inputs, targets = make_batch()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        of_pieces = []
        run.step(*([inputs] if first else []), **({"target": targets, "losses": of_pieces} if last else {}))
        optimizer.step()
        mean = torch.stack([loss.detach() for loss in of_pieces]).mean() if of_pieces else torch.zeros((), dtype=torch.double)
        dist.broadcast(mean, group=group, group_src=source)
        losses.append(mean.item())
    compare(losses, {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach() for name, p in parameters.items()})


def in_stages(schedule):
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = make_model()
    cuts = [0, 1, 5] if size == 2 else [0, 2, 3, 5]  # of five layers, unevenly
    names = [str(i) for i in range(cuts[rank], cuts[rank + 1])]
    part = nn.Sequential()
    for name in names:
        part.add_module(name, whole.get_submodule(name))
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    run = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule](stage, MICRO_BATCHES, loss_fn=loss_of)
    train_stages(run, dict(part.named_parameters()), rank == 0, rank + 1 == size, size - 1)


def in_several_stages_each(schedule):
    """Two stages on each of two ranks: 0 and 2 on the first, or for the V of zero-bubble 0 and 3."""
    rank, whole = dist.get_rank(), make_model()
    v = schedule is ScheduleZBVZeroBubble
    cuts, mine = [0, 1, 2, 4, 5], [rank, 3 - rank if v else rank + 2]
    parts = {number: nn.Sequential() for number in mine}
    for number, part in parts.items():
        for name in map(str, range(cuts[number], cuts[number + 1])):
            part.add_module(name, whole.get_submodule(name))
    stages = [PipelineStage(part, number, 4, torch.device("cpu")) for number, part in parts.items()]
    run = schedule(stages, MICRO_BATCHES, loss_fn=loss_of)
    parameters = {name: parameter for part in parts.values() for name, parameter in part.named_parameters()}
    train_stages(run, parameters, 0 in mine, 3 in mine, 0 if v else 1)


def by_schedules_of_several_stages():
    for schedule in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble):
        in_several_stages_each(schedule)


def in_stages_of_parts():
    """Both at once, on one mesh: each stage's blocks in parts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "tensor"))
    stage_number, whole = mesh["stage"].get_local_rank(), make_model()
    names = ["0", "1"] if stage_number == 0 else ["2", "3", "4"]
    part = nn.Sequential()
    for name in names:
        part.add_module(name, whole.get_submodule(name))
    parallelize_module(part, mesh["tensor"], {f"{block}.{layer}": style() for block in names if block in "123"
                                              for layer, style in (("up", ColwiseParallel), ("down", RowwiseParallel))})
    stage = PipelineStage(part, stage_number, 2, torch.device("cpu"), group=mesh.get_group("stage"))
    run = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    train_stages(run, dict(part.named_parameters()), stage_number == 0, stage_number == 1, 1, mesh.get_group("stage"))


def all_on_two_ranks():
    in_parts(sequence_parallel=False)
    in_parts(sequence_parallel=True)
    in_stages("gpipe")


class ModelParallel(unittest.TestCase):
    def test_tensors_in_parts_and_two_stages(self):
        ranks.on_ranks(2, all_on_two_ranks)

    def test_two_stages_on_each_rank(self):
        ranks.on_ranks(2, by_schedules_of_several_stages)

    def test_two_stages_in_parts(self):
        ranks.on_ranks(4, in_stages_of_parts)


if __name__ == "__main__":
    ranks.main(globals())
