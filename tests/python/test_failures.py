"""The messages that users see when something is wrong: a rank that dies, calls that differ, another torch."""

import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import models
import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bimetal
from bimetal import _build, _torch_check

from searches import harness


def told(error, since):
    return {"type": type(error).__name__, "code": getattr(error, "code", None), "rank": getattr(error, "rank", None),
            "text": str(error), "seconds": time.monotonic() - since}


def all_reduce_until_somebody_dies():
    dist.barrier()
    print("ready", flush=True)
    try:
        while True:
            before = time.monotonic()
            dist.all_reduce(torch.ones(100_000))
    except dist.DistBackendError as error:
        return told(error, before)


def train_until_somebody_dies():
    model = DistributedDataParallel(models.make("cnn"))
    print("ready", flush=True)
    try:
        while True:
            before = time.monotonic()
            models.loss_of(model, *models.batch("cnn", 0, dist.get_rank())).backward()
    except RuntimeError as error:
        return told(error, before)


def unlike_calls():
    before = time.monotonic()
    try:
        dist.all_reduce(torch.ones(10 + dist.get_rank()))
        dist.barrier()
    except bimetal.Error as error:
        return told(error, before)


def all_but_one_in_a_group_that_times_out():
    group, store = dist.new_group(timeout=datetime.timedelta(seconds=2)), dist.distributed_c10d._get_default_store()
    dist.barrier()
    before = time.monotonic()
    if dist.get_rank() == 1:
        store.wait(["0 is told", "2 is told"])
        return None
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except bimetal.Error as error:
        store.set(f"{dist.get_rank()} is told", "")
        return told(error, before)


def init_with_a_token_on_rank_0(path):
    rank = int(os.environ["RANK"])
    if rank == 0:  # which gives up soon: the other is there already
        os.environ["BIMETAL_TOKEN_FILE"] = path
        harness.wait_until(lambda: os.path.exists(f"{path}.there"), "rank 1")
    else:
        pathlib.Path(f"{path}.there").touch()
    before = time.monotonic()
    try:
        dist.init_process_group("bimetal", timeout=datetime.timedelta(seconds=4))
    except bimetal.Error as error:
        return {**told(error, before), "own_rank": rank}


def init_told():
    before = time.monotonic()
    try:
        dist.init_process_group("bimetal", timeout=datetime.timedelta(seconds=60))
    except bimetal.Error as error:
        return told(error, before)
    return sum_of_ones()


def sum_of_ones():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()


def leave_without_goodbye():
    dist.all_reduce(torch.ones(3))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future().then(lambda future: None)
    return "left"


def survivors(body, count=3, victim=1):
    with ranks.start(count, body) as job:
        job.wait_for("ready", 90)
        job.processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        alive = [rank for rank in range(count) if rank != victim]
        for rank in alive:
            job.processes[rank].wait(30)
        return [job.value(rank) for rank in alive], time.monotonic() - killed


class Failures(unittest.TestCase):
    def test_a_killed_rank_is_named_at_once(self):
        told, seconds = survivors(all_reduce_until_somebody_dies)
        for error in told:
            self.assertEqual((error["type"], error["code"], error["rank"]), ("Error", "peer_lost", 1), error)
            self.assertRegex(error["text"], r"rank 1.*\[peer_lost, rank 1\]")
            self.assertLess(error["seconds"], harness.patient(5))  # usually about one
        print(f"told after {max(e['seconds'] for e in told):.2f} s, gone after {seconds:.2f} s", file=sys.stderr)

    def test_a_killed_rank_ends_ddp_in_torchs_own_error(self):
        told, _ = survivors(train_until_somebody_dies)
        for error in told:
            self.assertIn(error["type"], ("DistBackendError", "Error"))
            self.assertRegex(error["text"], r"\[peer_lost, rank 1\]")

    def test_unlike_calls_name_both(self):
        for error in ranks.on_ranks(2, unlike_calls):
            self.assertEqual(error["code"], "call_mismatch")
            self.assertIn("10 float32", error["text"])
            self.assertIn("11 float32", error["text"])

    def test_a_groups_timeout(self):
        answers = ranks.on_ranks(3, all_but_one_in_a_group_that_times_out)
        for error in (answers[0], answers[2]):
            self.assertEqual((error["code"], error["rank"]), ("timeout", 1), error)

    def test_a_process_may_end_without_destroying_its_group(self):
        self.assertEqual(ranks.on_ranks(2, leave_without_goodbye, environment={ranks.LEAVE: "1"}),
                         ["left"] * 2)

    def test_another_torch_has_the_library_and_is_told_what_to_do(self):
        major, minor = _torch_check.series(_build.TORCH).split(".")
        other = f"{major}.{int(minor) - 1}.1+cpu"
        _torch_check.check(f"{major}.{minor}.9")
        with self.assertRaisesRegex(ImportError, re.escape(f"against torch {major}.{minor}, but torch {other}")):
            _torch_check.check(other)
        program = f"import torch; torch.__version__ = {other!r}; import bimetal.library.interface as core; print(core.PATH.name); " \
                  "from bimetal import _C; _C.HookedModel"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
                             env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(run.stdout, f"{_torch_check.LIBRARY}\n")
        for word in ("UserWarning: bimetal", "ImportError: this call needs bimetal's torch library: bimetal"):  # at the import, and where it is needed
            line, = (line for line in run.stderr.splitlines() if word in line)
            self.assertIn(f"torch {other} is installed", line)
            self.assertIn("pip install --no-build-isolation", line)

    def test_only_some_ranks_have_a_token(self):
        with tempfile.TemporaryDirectory() as folder:
            token = harness.write_token(pathlib.Path(folder, "token"))
            for error in ranks.on_ranks(2, init_with_a_token_on_rank_0, str(token), backend=None):
                self.assertEqual(error["code"], "unauthorized" if error["own_rank"] else "timeout", error)
            self.assertEqual(ranks.on_ranks(2, sum_of_ones, environment={"BIMETAL_TOKEN_FILE": str(token)}), [2, 2])

    def started(self, **environment):
        """The error or the group of each of two ranks that nobody says are on one machine, and the output of each."""
        with ranks.start(2, init_told, backend=None, environment=environment, unset=["LOCAL_WORLD_SIZE"]) as job:
            self.assertEqual(job.wait(150), [0, 0], job.text())
            return [job.value(rank) for rank in range(2)], [job.output(rank) for rank in range(2)]

    def test_without_a_token_ranks_stay_on_loopback_and_plain(self):
        self.assertEqual(self.started()[0], [2, 2])
        for environment in ({"MASTER_ADDR": harness.own_address()}, {"BIMETAL_ENCRYPTION": "on"}):
            for error in self.started(**environment)[0]:
                self.assertEqual(error["code"], "unauthorized", error)
                for word in ("bimetal token FILE", "BIMETAL_TOKEN_FILE=FILE", "torchrun"):
                    self.assertIn(word, error["text"])

    def test_a_token_in_a_variable_is_as_long_as_in_a_file(self):
        for error in self.started(BIMETAL_TOKEN="fifteen letters")[0]:
            self.assertEqual(error["code"], "invalid_argument", error)
            self.assertNotIn("fifteen letters", error["text"])

    def test_a_plain_job_beyond_loopback_says_so_once(self):
        secret = {"BIMETAL_TOKEN": "a secret of enough letters", "MASTER_ADDR": harness.own_address()}
        for encryption, notices in (("off", 1), ("on", 0)):
            sums, outputs = self.started(**secret, BIMETAL_ENCRYPTION=encryption)
            self.assertEqual(sums, [2, 2])
            self.assertEqual([text.count("but not encrypted") for text in outputs], [notices, 0], outputs)
            self.assertEqual(outputs[0].count("BIMETAL_ENCRYPTION=on"), notices)
        _, outputs = self.started(BIMETAL_TOKEN="a secret of enough letters")
        self.assertNotIn("not encrypted", "".join(outputs))


if __name__ == "__main__":
    ranks.main(globals())
