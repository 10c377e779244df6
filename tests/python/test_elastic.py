"""Loops of one's own whose workers come, go and are killed: what they train is what one process trains of the same batches."""

import collections
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import bimetal

SAMPLES, BATCH, EPOCHS = 203, 16, 3


def data():
    drawn = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 6, generator=drawn, dtype=torch.float64)
    return TensorDataset(torch.arange(SAMPLES), inputs, inputs.sin().sum(1, keepdim=True))


def parts(seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8),
            "sampler": bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=5)}


def train(state, after=lambda state: None):
    alone = not dist.is_initialized()
    model = state.model if alone else DistributedDataParallel(state.model)
    if not alone:
        model.register_comm_hook(state.sampler, bimetal.sample_exact_hook)
    while state.sampler.next_epoch < EPOCHS:
        for indices, inputs, targets in DataLoader(data(), batch_sampler=state.sampler):
            used = indices.tolist() if state.sampler.weight > 0 else []
            state.optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            if alone:
                state.sampler.finish_step()
            state.optimizer.step()
            state.scheduler.step()
            everyone = [used] if alone else [None] * dist.get_world_size()
            if not alone:
                dist.all_gather_object(everyone, used)
            state.steps = [*state.steps, [len(everyone), sum(everyone, [])]]
            if not alone:
                state.commit()
            after(state)
    return state


def result(state):
    """How far it is from what one process makes of the same batches."""
    place = {"world": dist.get_world_size(), "rank": dist.get_rank(), "steps": state.steps}
    dist.destroy_process_group()
    alone = train(bimetal.elastic.State(**parts(), steps=[]))
    pairs = list(zip(state.model.parameters(), alone.model.parameters(), strict=True))
    worst = max(float((mine - his).abs().max() / his.abs().max()) for mine, his in pairs)
    return {"worst": worst, "lr": state.optimizer.param_groups[0]["lr"] / alone.optimizer.param_groups[0]["lr"], **place}


def loop(name="", **how):
    """Args: name: of what happens after a step, below."""
    rank = int(os.environ.get("RANK", "0" if "BIMETAL_DOOR" not in os.environ else "9"))
    state = bimetal.elastic.State(**parts(seed=rank + 1), steps=[])  # what rank 0 has counts

    def after(state):
        print(f"step {len(state.steps)} of {dist.get_world_size()} at {bimetal.elastic.doors()[-1]}", flush=True)
        time.sleep(0.02)
        if name and len(state.steps) in (20, 30):
            EVENTS[name](state, rank)

    try:
        bimetal.elastic.run(lambda state: train(state, after), state, **how)
    except (bimetal.Error, ValueError) as error:
        return {"error": getattr(error, "code", ""), "text": str(error)}
    return result(state)


def train_in_shards(state, kind, folder, every, waits):
    torch.manual_seed(1 + dist.get_rank())
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    if kind == "zero":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        sharded = bimetal.zero.shard(model, optimizer, level=3, sampler=state.sampler, units=[model[0], model[2]])
    else:
        for tensor in model.parameters():
            dist.broadcast(tensor.data, 0)
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
    state.keep(sharded if kind == "zero" else model, folder, optimizer=optimizer if kind != "zero" else None, every=every,
               scheduler=scheduler)
    while state.sampler.next_epoch < EPOCHS:
        for indices, inputs, targets in DataLoader(data(), batch_sampler=state.sampler):
            used = indices.tolist() if state.sampler.weight > 0 else []
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            if kind == "zero":
                loss.backward()
            else:
                (loss * state.sampler.loss_scale).backward()
                state.sampler.finish_step()
            optimizer.step()
            scheduler.step()
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, used)
            state.steps = [*state.steps, [len(everyone), sum(everyone, [])]]
            print(f"step {len(state.steps)} of {dist.get_world_size()}", flush=True)
            time.sleep(0.02)
            if len(state.steps) == 30 and waits:
                wait_for_a_newcomer(state, dist.get_rank())
            state.commit()
    whole = sharded.state_dict(rank=None) if kind == "zero" else {name: one.full_tensor() for name, one in model.state_dict().items()}
    return whole, optimizer.param_groups[0]["lr"]


def loop_in_shards(kind, folder, every, waits=False):
    state = bimetal.elastic.State(sampler=bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=5), steps=[])
    try:
        whole, rate = bimetal.elastic.run(lambda state: train_in_shards(state, kind, folder, every, waits), state, timeout=60.0)
    except bimetal.Error as error:
        return {"error": error.code, "text": str(error)}
    place = {"world": dist.get_world_size(), "rank": dist.get_rank(), "steps": state.steps}
    dist.destroy_process_group()
    alone = train(bimetal.elastic.State(**parts(), steps=[]))
    pairs = [(whole[name], his) for name, his in alone.model.state_dict().items()]
    worst = max(float((mine - his).abs().max() / his.abs().max()) for mine, his in pairs)
    return {"worst": worst, "lr": rate / alone.optimizer.param_groups[0]["lr"], **place}


def wait_for_a_newcomer(state, rank):
    until = time.monotonic() + 120
    while rank == 0 and dist.get_world_size() == 2 and not state._run._members.somebody_waits() and time.monotonic() < until:
        time.sleep(0.05)


def come_back(state, rank):
    if len(state.steps) == 20 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif len(state.steps) == 30:
        wait_for_a_newcomer(state, rank)


def leave(state, rank):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGTERM)


def fail(state, rank):
    if rank == 1:
        raise ValueError("sample 17 cannot be read")


EVENTS = {"newcomer": wait_for_a_newcomer, "restart": come_back, "leave": leave, "fail": fail}


def launched():
    """As a script of `bimetal launch`."""
    print(f"end {json.dumps(loop('restart'))}", flush=True)


def impatient():
    return loop("newcomer", timeout=5.0)


def too_few():
    return loop(min_workers=3, patience=1.0, timeout=20.0)


def patient():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python has it by itself
    try:
        return loop(min_workers=2, patience=300.0)
    except KeyboardInterrupt:
        return {"error": "interrupted", "text": ""}


def refusals():
    """Impossible settings are refused before anything is trained."""
    State, run = bimetal.elastic.State, bimetal.elastic.run  # noqa: N806 (a class)
    model = nn.Linear(2, 2)

    def refused(code, text, call):
        error = ranks.raises(bimetal.Error, call, text)
        assert error.code == code, error

    def run_with(**kept):
        return lambda: run(lambda _: None, State(**kept))

    refused("invalid_argument", "keeps nothing", State)
    refused("invalid_argument", "cannot be called commit", lambda: State(commit=1))
    refused("invalid_argument", "the state has no step: name what it keeps", lambda: setattr(State(model=model), "step", 1))
    refused("invalid_argument", "is for a function that bimetal.elastic.run", State(model=model).commit)
    refused("invalid_argument", "state['best'] is a object", run_with(best=object()))
    refused("unsupported", "state['values'] is a Tensor", run_with(values=torch.eye(2).to_sparse()))
    refused("invalid_argument", "min_workers=3 and max_workers=2",
            lambda: run(lambda _: None, State(model=model), min_workers=3, max_workers=2))
    refused("unsupported", "leave out group=", run_with(sampler=bimetal.BalancedBatchSampler(9, 2, group=dist.new_group([0]))))
    refused("unsupported", "a number for each rank", run_with(sampler=bimetal.BalancedBatchSampler(9, 2, balance="fixed", weights=[1])))
    def in_shards(state):
        bimetal.zero.shard(state.model, state.optimizer, level=1)
        state.commit()

    def in_parts(state):
        state.model.weight = nn.Parameter(torch.zeros(1, 2))
        state.commit()

    def in_torchs_shards(state):
        fully_shard(state.model, mesh=init_device_mesh("cpu", (1,)))
        state.commit()

    for cut, text in ((in_shards, "model.weight has been cut into parts of the ranks"), (in_parts, "model.weight has been cut"),
                      (in_torchs_shards, "state['model']['weight'] is a DTensor: what its rank has of it would be lost")):
        other = nn.Linear(2, 2)
        state = State(model=other, optimizer=torch.optim.SGD(other.parameters(), 0.1))
        refused("unsupported", text, lambda: run(cut, state))  # noqa: B023 (at once)
        dist.destroy_process_group()
        dist.init_process_group("bimetal", store=dist.HashStore(), rank=0, world_size=1)
    calls = []

    def in_vain(_):
        calls.append(dist.get_world_size())
        raise bimetal.Error("rank 0 is gone [peer_lost, rank 0]", "peer_lost", 0)

    refused("peer_lost", "rank 0 is gone", lambda: run(in_vain, State(model=model)))
    assert calls == [1] * 4, calls  # nobody was lost
    dist.destroy_process_group()
    dist.init_process_group("bimetal", store=dist.HashStore(), rank=0, world_size=1)
    wrapped = DistributedDataParallel(model)
    refused("invalid_argument", "give State the model within", lambda: State(model=wrapped))
    refused("invalid_argument", "model is in a DistributedDataParallel already", run_with(model=model))
    assert run(lambda state: state.part, State(part=3)) == 3 and bimetal.elastic.doors() == []
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    refused("unsupported", "the process group is gloo's", run_with(part=3))


def packings():
    """Copies come back as they were: types, keys, bits."""
    from bimetal.elastic.packing import Packed
    values = {"a": [1, 2.5, None, True, (3, "x")], 7: {"f": float("inf"), "tiny": 5e-324, 2: torch.tensor(3)},
              "c": collections.Counter({4: 2}), "t": [torch.randn(3, 2).bfloat16().T, torch.zeros(0, 4), torch.tensor([True, False])]}
    model = nn.BatchNorm1d(2)
    packed = Packed({"values": values, "model": model.state_dict()}, "state")
    got = packed.value()
    assert got["model"]._metadata == model.state_dict()._metadata and type(got["values"]["c"]) is collections.Counter
    assert str(got["values"]) == str(values), got
    assert [one.dtype for one in got["values"]["t"]] == [one.dtype for one in values["t"]]
    again = Packed({"values": values, "model": model.state_dict()}, "state", packed)
    assert all(old is new for old, new in zip(packed.tensors, again.tensors, strict=True))


def start(count, body=loop, *arguments, **environment):
    return ranks.start(count, body, *arguments, backend=None, environment=environment)


def wait_for(job, rank, pattern, seconds=120):
    until = time.monotonic() + seconds
    while not (found := re.search(pattern, job.output(rank))):
        if time.monotonic() > until or job.processes[rank].poll() is not None:
            raise AssertionError(f"{pattern}\n{job.text()}")
        time.sleep(0.01)
    return found


def ended(job, living, seconds=120):
    """The last reports of the living workers."""
    until = time.monotonic() + seconds
    for rank in living:
        try:
            status = job.processes[rank].wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"rank {rank} has not ended\n{job.text()}") from late
        assert status == 0, f"rank {rank}: {status}\n{job.text()}"
    return [job.value(rank) for rank in living]


class Elastic(unittest.TestCase):
    def check(self, results, sizes):
        for rank, one in enumerate(results):
            self.assertNotIn("error", one, one)
            self.assertLess(one["worst"], 1e-12, one)
            self.assertEqual((one["rank"], one["world"], one["lr"]), (rank, len(results), 1.0))
            self.assertEqual(list(dict.fromkeys(size for size, _ in one["steps"])), sizes)
            in_epoch = -(-SAMPLES // BATCH)
            self.assertEqual(len(one["steps"]), EPOCHS * in_epoch)
            for epoch in range(EPOCHS):
                used = [index for _, step in one["steps"][epoch * in_epoch:(epoch + 1) * in_epoch] for index in step]
                self.assertEqual(sorted(used), list(range(SAMPLES)))

    def lose(self, victim):
        with start(3) as job:
            wait_for(job, victim, r"step 7 of 3")
            job.processes[victim].send_signal(signal.SIGKILL)
            self.check(ended(job, [rank for rank in range(3) if rank != victim]), [3, 2])

    def test_the_first_rank_is_killed(self):
        self.lose(0)

    def test_the_last_rank_is_killed(self):
        self.lose(2)

    def test_a_newcomer(self):
        port = ranks.free_port()
        with start(2, loop, "newcomer", BIMETAL_DOOR_PORT=str(port)) as job:
            self.assertEqual(wait_for(job, 0, r"step 9 of 2 at (\S+)")[1], f"127.0.0.1:{port + 1}")
            with start(1, BIMETAL_DOOR=f"127.0.0.1:1,127.0.0.1:{port + 1}", BIMETAL_DOOR_PORT=str(port)) as later:
                self.check([*ended(job, (0, 1)), *ended(later, (0,))], [2, 3])

    def lose_shards(self, kind, every, sizes):
        with tempfile.TemporaryDirectory() as folder, start(3, loop_in_shards, kind, folder, every) as job:
            wait_for(job, 0, r"step 7 of 3")
            job.processes[0].send_signal(signal.SIGKILL)
            wait_for(job, 1, r"step \d+ of 2")
            self.check(ended(job, (1, 2)), sizes)
            self.assertEqual(len(os.listdir(folder)), 2)

    def test_shards_outlive_a_rank(self):
        self.lose_shards("zero", 1, [3, 2])

    def test_shards_go_back_to_what_was_written(self):
        self.lose_shards("zero", 3, [3, 2])

    def test_fsdp_outlives_a_rank(self):
        self.lose_shards("fsdp", 2, [3, 2])

    def test_shards_take_in_a_newcomer(self):
        port = ranks.free_port()
        with (tempfile.TemporaryDirectory() as folder,
              start(2, loop_in_shards, "zero", folder, 2, True, BIMETAL_DOOR_PORT=str(port)) as job):
            wait_for(job, 0, r"step 9 of 2")
            with start(1, loop_in_shards, "zero", folder, 2, True, BIMETAL_DOOR=f"127.0.0.1:{port}") as later:
                self.check([*ended(job, (0, 1)), *ended(later, (0,))], [2, 3])

    def test_shards_that_are_gone_are_named(self):
        with tempfile.TemporaryDirectory() as folder, start(3, loop_in_shards, "zero", folder, 1) as job:
            wait_for(job, 0, r"step 7 of 3")
            for rank in (1, 2):
                job.processes[rank].send_signal(signal.SIGSTOP)
            job.processes[0].send_signal(signal.SIGKILL)
            shutil.rmtree(folder)
            for rank in (1, 2):
                job.processes[rank].send_signal(signal.SIGCONT)
            leads, other = ended(job, (1, 2))
            self.assertEqual(leads["error"], "invalid_argument", leads)
            self.assertRegex(leads["text"], r"the shards of commit \d+ are not in .* needs one that all machines see")
            self.assertIn(folder, other["text"])

    def test_one_that_was_stopped_comes_back(self):
        with start(3, impatient) as job:
            wait_for(job, 1, r"step 5 of 3")
            job.processes[1].send_signal(signal.SIGSTOP)
            wait_for(job, 0, r"step 20 of 2")
            job.processes[1].send_signal(signal.SIGCONT)
            self.check(ended(job, (0, 2, 1)), [3, 2])

    def test_one_leaves(self):
        with start(3, loop, "leave") as job:
            self.check(ended(job, (1, 2)), [3, 2])
            self.assertEqual(job.processes[0].wait(30), 0, job.text())
            self.assertFalse(job.results[0].exists())

    def test_an_error_of_ones_own_ends_all(self):
        with start(3, loop, "fail") as job:
            first, own, last = ended(job, (0, 1, 2))
        self.assertEqual(own, {"error": "", "text": "sample 17 cannot be read"})
        for other in (first, last):
            self.assertEqual(other["error"], "aborted")
            self.assertRegex(other["text"], r"python on .* \(process \d+\) has failed: ValueError: sample 17 cannot be read")

    def test_too_few_are_left(self):
        with start(3, too_few) as job:
            wait_for(job, 1, r"step 7 of 3")
            job.processes[1].send_signal(signal.SIGKILL)
            for other in ended(job, (0, 2)):
                self.assertEqual(other["error"], "peer_lost")
                self.assertRegex(other["text"], r"[12] of 3 members are there, without .*min_workers asks for 3")


    def test_ctrl_c_ends_the_wait_for_others(self):
        with start(2, patient) as job:
            wait_for(job, 1, r"step 7 of 2")
            job.processes[1].send_signal(signal.SIGKILL)
            time.sleep(3)
            job.processes[0].send_signal(signal.SIGINT)
            self.assertEqual(ended(job, (0,), 60)[0]["error"], "interrupted")

    def test_what_cannot_work_is_refused(self):
        ranks.on_ranks(1, refusals)

    def test_what_is_kept_comes_back_as_it_was(self):
        packings()


if __name__ == "__main__":
    ranks.main(globals())
