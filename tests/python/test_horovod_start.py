"""Horovod's API: where ranks and sizes come from, what the ranks agree on, and what they take from each other."""

import copy
import inspect
import io
import os
import pathlib
import pickle
import tempfile
import unittest

import numpy
import ranks
import torch
from ranks import raises

import bimetal.horovod
import bimetal.horovod.torch as hvd
from bimetal.horovod.core import meeting, objects
from bimetal.horovod.core.negotiation import Announcement, decide
from bimetal.horovod.core.request import ReduceOp, Signature


def sum_of_ranks():
    hvd.init()
    return [hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum).item(), hvd.rank(), hvd.size(),
            hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()]


def sums_of_sets():
    """Ranks that meet again after all have met: process sets, and the ranks once more."""
    hvd.init()
    sums = []
    for _ in range(2):
        mine = next(one for one in [hvd.add_process_set([0]), hvd.add_process_set([1, 2])] if one.included())
        sums.append(hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum, process_set=mine).item())
        hvd.shutdown()
        hvd.init()
    return sums


class Launchers(unittest.TestCase):
    def under(self, variables, count=2, body=sum_of_ranks):
        """A job whose ranks see these variables of a launcher alone; {rank} stands for the number."""
        with ranks.start(count, body, backend=None, unset=["MASTER_ADDR", "MASTER_PORT", *ranks.VARIABLES],
                         each=lambda rank: {name: value.format(rank=rank) for name, value in variables.items()}) as job:
            statuses = job.wait(150)
            self.assertEqual(statuses, [0] * count, job.text())
            return [job.value(rank) for rank in range(count)]

    def test_variables_of_each(self):
        local = [[1.0, rank, 2, rank, 2, 0, 1, True] for rank in range(2)]
        self.assertEqual(self.under({"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2",
                                     "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}), local)
        self.assertEqual(self.under({"PMI_RANK": "{rank}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{rank}",
                                     "MPI_LOCALNRANKS": "2"}), local)
        self.assertEqual(self.under({"SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "{rank}",
                                     "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "17"}), local)
        self.assertEqual(self.under({"HOROVOD_RANK": "{rank}", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "{rank}",
                                     "HOROVOD_LOCAL_SIZE": "2"}), local)

    def test_those_who_met_by_a_file_meet_again(self):
        with tempfile.TemporaryDirectory() as folder:
            sums = self.under({"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "3", "TMPDIR": folder,
                               "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3, sums_of_sets)
            self.assertEqual(sums, [[0.0, 0.0], [3.0, 3.0], [3.0, 3.0]])
            self.assertEqual([str(file) for file in pathlib.Path(folder).rglob("horovod-*")], [])

    def test_hosts(self):
        port = str(ranks.free_port())
        names = ["a", "b", "a"]
        with ranks.start(3, sum_of_ranks, backend=None, unset=["LOCAL_RANK", "LOCAL_WORLD_SIZE"],
                         each=lambda rank: {"HOROVOD_HOSTNAME": names[rank], "MASTER_PORT": port}) as job:
            self.assertEqual(job.wait(150), [0] * 3, job.text())
            self.assertEqual([job.value(rank)[3:] for rank in range(3)],
                             [[0, 2, 0, 2, False], [0, 1, 1, 2, False], [1, 2, 0, 1, False]])

    def test_alone(self):
        with ranks.start(1, sum_of_ranks, backend=None, unset=["MASTER_ADDR", "MASTER_PORT", *ranks.VARIABLES]) as job:
            self.assertEqual(job.wait(150), [0], job.text())
            self.assertEqual(job.value(0), [0.0, 0, 1, 0, 1, 0, 1, True])

    def test_what_makes_no_sense(self):
        def place(**variables):
            return meeting.find_place(variables)
        self.assertEqual(place(SLURM_PROCID="0", SLURM_NTASKS="4").size, 1)  # in a batch script, not a step
        for variables in ({"RANK": "1"}, {"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}):
            raises(bimetal.Error, lambda v=variables: place(**v), "RANK")
        several = place(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_SIZE="2")
        raises(bimetal.Error, lambda: meeting.open_meeting(several, 1.0, {}), "mpirun -x MASTER_ADDR")
        raises(bimetal.Error, lambda: meeting.open_meeting(several, 1.0, {"MASTER_ADDR": "h"}), "MASTER_PORT")
        port = str(ranks.free_port())
        late = place(RANK="1", WORLD_SIZE="2")
        error = raises(bimetal.Error, lambda: meeting.open_meeting(
            late, 1.0, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}), f"127.0.0.1:{port}", "firewall")
        self.assertEqual(error.code, "timeout")
        self.assertEqual(meeting.first_node("node[07-09,12]x,big"), "node07x")
        self.assertEqual(meeting.first_node("big1,node[1-2]"), "big1")

    def test_objects_that_are_code_are_not_read(self):
        class Attack:
            def __reduce__(self):
                return os.system, ("echo attacked",)
        buffer = io.BytesIO()
        torch.save({"a": Attack()}, buffer)
        raises(pickle.UnpicklingError, lambda: objects.from_bytes(buffer.getvalue()))
        value = {"a": [1, (2.5, None)], "b": numpy.ones((2, 3), dtype=numpy.int8)}
        back = objects.from_bytes(objects.to_bytes(copy.deepcopy(value)))
        self.assertEqual((back["a"], back["b"].dtype, back["b"].tolist()), (value["a"], numpy.int8, [[1] * 3] * 2))

    def test_what_is_exported_is_documented(self):
        for name in hvd.__all__:
            if name not in ("Adasum", "Average", "Max", "Min", "Product", "Sum"):  # values
                self.assertTrue(inspect.getdoc(getattr(hvd, name)), f"hvd.{name} has no docstring")
        self.assertEqual(set(bimetal.horovod.__all__), set(hvd.__all__))

    def test_calls_before_init(self):
        raises(ValueError, hvd.rank, "hvd.init()")
        self.assertIs(hvd.HorovodInternalError, bimetal.Error)


def wants(*requests, joined=False, stalled=False):
    return Announcement(tuple(requests), joined, stalled)


def sum_of(name, *shape, op=ReduceOp.Sum, dtype="float32"):
    return Signature("allreduce", name, ((dtype, shape),), op)


class Negotiation(unittest.TestCase):
    def names(self, decision):
        return [next(one.name for one in found if one) for found in decision.run]

    def test_what_all_have_runs_in_one_order(self):
        a, b, c = sum_of("a", 3), sum_of("b", 4), sum_of("c", 5)
        decision = decide([wants(a, b, c), wants(c, a)])
        self.assertEqual(self.names(decision), ["a", "c"])
        self.assertFalse(decide([wants(a), wants(b)]).run)
        self.assertFalse(decide([wants(a), wants()]).run)

    def test_who_has_joined_counts_as_asking(self):
        a = sum_of("a", 3)
        self.assertEqual(decide([wants(a), wants(joined=True)]).run, [[a, None]])
        decision = decide([wants(sum_of("a", 3, op=ReduceOp.Min)), wants(joined=True)])
        self.assertEqual(decision.refused["a"][0], "unsupported")
        self.assertTrue(decide([wants(joined=True)] * 2).all_joined)
        self.assertFalse(decide([wants(joined=True), wants(a, joined=True)]).all_joined)
        self.assertFalse(decide([wants(joined=True), wants()]).all_joined)

    def test_what_differs_is_refused(self):
        a = sum_of("a", 3)
        for other in (sum_of("a", 4), sum_of("a", 3, dtype="float64"), sum_of("a", 3, op=ReduceOp.Max)):
            decision = decide([wants(a), wants(other)])
            self.assertEqual((decision.run, decision.refused["a"][0]), ([], "call_mismatch"))
        rows = [Signature("allgather", "g", (("int8", (count, 2)),)) for count in (1, 5)]
        self.assertEqual(decide([wants(rows[0]), wants(rows[1])]).run, [rows])

    def test_deadlocks(self):
        a, b = sum_of("a", 3), sum_of("b", 3)
        self.assertIsNone(decide([wants(a, stalled=True), wants(b)]).deadlock)
        told = decide([wants(a, stalled=True), wants(b, stalled=True)]).deadlock
        self.assertIn("rank 0 for allreduce 'a'", told)
        self.assertIn("rank 1 for allreduce 'b'", told)
        self.assertIsNone(decide([wants(joined=True), wants()]).deadlock)

    def test_announcements_travel_as_json(self):
        said = wants(sum_of("ä", 3, 4), Signature("alltoall", "x", (("bool", (2,)),), splits=(1, 1)), joined=True)
        self.assertEqual(Announcement.decode(said.encode()), said)


if __name__ == "__main__":
    ranks.main(globals())
