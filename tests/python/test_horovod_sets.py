"""Horovod's API: process sets, and the timeline."""

import itertools
import json
import pathlib
import tempfile
import unittest

import ranks
import torch
from ranks import raises, refused
from test_horovod_torch import everyone, same, values

import bimetal
import bimetal.horovod.torch as hvd


def check_process_sets():
    rank, size = hvd.rank(), hvd.size()
    halves = [hvd.add_process_set(list(range(0, size, 2))), hvd.add_process_set(hvd.ProcessSet(range(1, size, 2)))]
    mine, other = halves[rank % 2], halves[1 - rank % 2]
    members = list(range(rank % 2, size, 2))
    assert (mine.ranks, mine.size(), mine.rank(), mine.included()) == (members, len(members), rank // 2, True)
    assert not other.included() and hvd.global_process_set.ranks == list(range(size))
    assert halves[1].process_set_id == halves[0].process_set_id + 1
    given = [values(member) for member in members]
    for _ in range(3):  # both halves and all at once, in unlike orders
        handles = [lambda: hvd.allreduce_async(values(rank), op=hvd.Sum, process_set=mine, name="a"),
                   lambda: hvd.allreduce_async(values(rank), op=hvd.Sum, name="a")]
        begun = [handle() for handle in (handles if rank % 2 else reversed(handles))]
        of_mine, of_all = begun if rank % 2 else reversed(begun)
        same(hvd.synchronize(of_mine), sum(given))
        same(hvd.synchronize(of_all), sum(everyone()))
    torch.testing.assert_close(hvd.allreduce(values(rank), process_set=mine), torch.stack(given).mean(0))
    same(hvd.allgather(torch.full((rank + 1, 2), rank), process_set=mine)[:, 0],
         torch.tensor([member for member in members for _ in range(member + 1)]))
    same(hvd.broadcast(torch.tensor([rank]), members[-1], process_set=mine), torch.tensor([members[-1]]))
    same(hvd.alltoall(torch.arange(len(members)) + 10 * rank, process_set=mine),
         torch.tensor([10 * member for member in members]) + mine.rank())
    same(hvd.reducescatter(torch.ones(2 * len(members)), op=hvd.Sum, process_set=mine),
         torch.full((2,), float(len(members))))
    assert hvd.allgather_object(rank, process_set=mine) == members
    assert hvd.broadcast_object(f"of {rank}", members[-1], process_set=mine) == f"of {members[-1]}"
    row = torch.tensor([[0]])
    sparse = torch.sparse_coo_tensor(row, torch.tensor([float(rank + 1)]), (3,))
    total = hvd.synchronize(hvd.sparse_allreduce_async(sparse, "sparse", hvd.Average, process_set=mine))
    assert total.to_dense().tolist() == [sum(member + 1 for member in members) / len(members), 0, 0], total
    hvd.barrier(process_set=mine)
    check_gradients_of_a_set(mine)
    raises(ValueError, lambda: hvd.allreduce(torch.ones(1), process_set=other), f"rank {rank}")
    raises(ValueError, lambda: hvd.add_process_set(range(0, size, 2)), "there already")
    raises(ValueError, lambda: hvd.add_process_set(range(size)), "there already")
    raises(ValueError, lambda: hvd.add_process_set([0, size]), "not there")
    refused(lambda: hvd.add_process_set([rank]), "call_mismatch", "rank 0", "rank 1")
    if len(members) > 1:
        error = raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(10 + rank), process_set=mine),
                       *(f"rank {member}" for member in members[:2]))
        assert error.code == "call_mismatch", error
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert hvd.remove_process_set(halves[0]) and not hvd.remove_process_set(halves[0])
    raises(ValueError, lambda: hvd.barrier(process_set=halves[0]), "add_process_set")
    if rank % 2:
        same(hvd.allreduce(values(rank), op=hvd.Sum, process_set=mine), sum(given))
    hvd.remove_process_set(halves[1])


def check_gradients_of_a_set(mine):
    x = torch.full((2,), 1.0 + hvd.rank(), requires_grad=True)
    hvd.allgather(x, process_set=mine).sum().backward()
    assert x.grad.tolist() == [1.0] * 2, x.grad
    y = torch.ones(2 * mine.size(), requires_grad=True)
    hvd.reducescatter(y, op=hvd.Sum, process_set=mine).sum().backward()
    assert y.grad.tolist() == [float(mine.size())] * 2 * mine.size(), y.grad
    z = torch.ones(3, requires_grad=True)
    hvd.broadcast(z, mine.ranks[0], process_set=mine).sum().backward()
    assert z.grad.tolist() == [float(mine.rank() == 0)] * 3, z.grad


def check_timeline():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "timeline.json"
        hvd.start_timeline(str(path), mark_cycles=True)
        if hvd.rank() == 0:
            raises(ValueError, lambda: hvd.start_timeline(str(path)), "already")
        for _ in range(2):
            hvd.allreduce(torch.ones(3, 4), name="seen")
        hvd.allgather(torch.ones(2), name="too")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="unseen")
        hvd.stop_timeline()
        if hvd.rank() != 0:
            assert not path.exists()
            return
        events = json.loads(path.read_text())
        lanes = {event["args"]["name"]: event["pid"] for event in events if event["ph"] == "M"}
        assert {"allreduce.seen", "allgather.too"} < set(lanes) and "allreduce.unseen" not in lanes, lanes
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == lanes["allreduce.seen"]]
        assert [span["name"] for span in spans] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * 2, spans
        assert spans[1]["args"]["tensors"] == ["float32 [3, 4]"]
        for before, after in itertools.pairwise(spans):
            assert before["dur"] >= 0 and before["ts"] + before["dur"] <= after["ts"] + 1e-2, spans
        assert any(event["name"] == "CYCLE_START" for event in events)


def all_checks():
    hvd.init()
    check_process_sets()
    check_timeline()
    hvd.shutdown()
    # A set of init() belongs to one world and can be added to the next.
    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    assert first.process_set_id == 1 and first.included() == (hvd.rank() == 0)
    hvd.shutdown()
    assert first.process_set_id is None
    hvd.init(process_sets="dynamic")
    hvd.add_process_set(first)
    if hvd.rank() == 0:
        same(hvd.allreduce(values(0), process_set=first), values(0))
    return "passed"


def record_to_the_end():
    hvd.init()
    hvd.allreduce(torch.ones(3), name="seen")


def leave_a_set_alone():
    """Rank 1 goes; the set of the others is not concerned."""
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    if hvd.rank() == 1:
        return "left"
    for _ in range(20):
        same(hvd.allreduce(values(hvd.rank()), op=hvd.Sum, process_set=pair), values(0) + values(2))
    return raises(bimetal.Error, lambda: hvd.allreduce(torch.ones(3))).rank


class Sets(unittest.TestCase):
    def test_two_ranks(self):
        self.assertEqual(ranks.on_ranks(2, all_checks, backend=None), ["passed"] * 2)

    def test_five_ranks(self):
        self.assertEqual(ranks.on_ranks(5, all_checks, backend=None), ["passed"] * 5)

    def test_a_set_without_a_lost_rank_goes_on(self):
        self.assertEqual(ranks.on_ranks(3, leave_a_set_alone, backend=None), [1, "left", 1])


class Timeline(unittest.TestCase):
    def test_the_environment_says_where(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "timeline.json"
            ranks.on_ranks(2, record_to_the_end, backend=None, environment={"HOROVOD_TIMELINE": str(path)})
            names = [event["name"] for event in json.loads(path.read_text())]
            self.assertIn("ALLREDUCE", names)
            self.assertNotIn("CYCLE_START", names)


if __name__ == "__main__":
    ranks.main(globals())
