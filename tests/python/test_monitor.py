"""bimetal.monitor: a loop in Python is shown as a job of the program is."""

import contextlib
import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
import urllib.error
import urllib.request
import warnings
from unittest import mock

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import bimetal
from searches import harness

BATCH, STEPS = 16, 5  # of an epoch
DATA = TensorDataset(torch.ones(BATCH * STEPS, 3), torch.arange(BATCH * STEPS) % 2)
PROGRAM = os.environ.get("BIMETAL")


def watched(kind, folder):
    """Trains until it is told to stop: by its own last epoch's figures."""
    rank = dist.get_rank()
    accumulate = 2 if kind == "accumulate" else 1
    sampler = bimetal.BalancedBatchSampler(DATA, BATCH // accumulate, balance="fixed", weights=[3, 1], accumulate=accumulate)
    loader = DataLoader(DATA, batch_sampler=sampler)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    if kind == "zero":
        model = module
        bimetal.zero.shard(module, optimizer, level=1, sampler=sampler)
    else:
        model = DistributedDataParallel(module)
        model.register_comm_hook(sampler, bimetal.sample_exact_hook)
    monitor = bimetal.monitor(sampler, loss=lambda: loss * 0 + rank + 1, epochs=10_000,
                              tensorboard=os.path.join(folder, "scalars"))
    print(f"hello of rank {rank}")
    logging.getLogger().error("an error of rank %d", rank)
    warnings.warn(f"care, rank {rank}", stacklevel=1)
    for _ in range(10_000):
        for number, (x, y) in enumerate(loader, 1):
            time.sleep(0.01)
            last = number % accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y)
                (sampler.weigh(loss * 0 + rank + 1) / 2 if accumulate > 1 else loss).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        monitor.evaluated(0.5, accuracy=0.25)
        told_to_end = torch.tensor([os.path.exists(os.path.join(folder, "end"))], dtype=torch.int32)
        dist.all_reduce(told_to_end, op=dist.ReduceOp.MAX)
        if told_to_end:
            return monitor.address


def page(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


class Watched(unittest.TestCase):
    def check(self, kind):
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder, ranks.start(2, watched, kind, folder) as job:
            address = self.address_in(job)
            until = time.monotonic() + 60
            while (status := json.loads(page(address, "/status")))["step"] < 8 or status["workers"][1]["device"] == "?":
                self.assertLess(time.monotonic(), until, status)
                time.sleep(0.05)
            lines = self.lines_of_ranks(address)
            metrics = page(address, "/metrics")
            table = self.top(address) if PROGRAM else ""
            pathlib.Path(folder, "end").touch()
            self.assertEqual(job.wait(120), [0, 0], job.text())
            self.assertEqual([job.value(rank) for rank in range(2)], [address, ""])
            output, other_output = (job.output(rank) for rank in range(2))
            scalars = b"".join(file.read_bytes() for file in pathlib.Path(folder, "scalars").iterdir())
        self.assertEqual([status["epochs"], status["steps"], status["counts"]], [10_000, 10_000 * STEPS, "samples"])
        self.assertEqual(status["loss"], 1.25, "the mean over all samples, of which the first rank has three in four")
        self.assertEqual([worker["device"] for worker in status["workers"]], ["cpu", "cpu"])
        for worker, share in zip(status["workers"], (12, 4), strict=True):
            self.assertEqual(worker["share"], share if kind != "accumulate" else share / 2)
            self.assertGreater(worker["samples_per_s_alone"], worker["samples_per_s"])
            self.assertGreater(worker["compute_s"], 0)
            self.assertGreater(worker["bytes_sent"] + 1, 0)
            self.assertTrue(0 <= worker["wait_part"] <= 1, worker)
            self.assertIsNone(worker["communicate_s"])
        self.assertTrue(0 < status["efficiency"] <= 1.05, status)
        self.assertRegex(metrics, r"(?m)^bimetal_loss 1\.25$")
        self.assertRegex(metrics, r'(?m)^bimetal_worker_share_samples\{rank="1",host=".+",device="cpu"\} [24]$')
        if PROGRAM:
            self.assertRegex(table, r"epoch \d+/10000  step \d+/50000  loss 1\.2500")
            self.assertRegex(table, r"(?m)^1 +cpu on .* 25\.0 %")
        self.assertRegex(output, r"step \d+/50000  \S+ left  loss 1\.2500  efficiency \d+ %  \d+ samples/s \(")
        self.assertIn("epoch 1: test accuracy 25.00 %, test loss 0.5000", output)
        for rank in range(2):
            said = lines[f"rank {rank}"]
            self.assertIn(("output", f"hello of rank {rank}"), said)
            self.assertEqual(sum(f"an error of rank {rank}" in text for _, text in said), 1, said)
            warning, = (text for kind, text in said if kind == "warning")
            self.assertIn(f"UserWarning: care, rank {rank} (", warning)
            self.assertFalse(any("care" in text for kind, text in said if kind == "output"), said)
            self.assertFalse(any("step" in text for _, text in said), "the line of progress is no log")
            for _, text in said:  # the terminal has it as before
                self.assertIn(text.partition(" (")[0].removeprefix("UserWarning: "), (output, other_output)[rank])
        self.assertNotIn("step", other_output)
        for tag in (b"loss", b"efficiency", b"share/rank_1", b"test_accuracy"):
            self.assertIn(tag, scalars)

    def lines_of_ranks(self, address):
        """Kind and text by rank, as the page gets them, once both have been heard."""
        found, until = {}, time.monotonic() + 60
        with urllib.request.urlopen(f"http://{address}/events", timeout=60) as events:
            for line in events:
                for one in json.loads(line[6:]).get("lines", ()) if line.startswith(b"data: ") else ():
                    found.setdefault(one["who"].split(" on ")[0], []).append((one["kind"], one["text"]))
                if sum(kind == "warning" for lines in found.values() for kind, _ in lines) == 2 or time.monotonic() > until:
                    return found

    def address_in(self, job):
        until = time.monotonic() + 60
        while not (found := re.search(r"monitor at (\S+); watch it with: bimetal top", job.output(0))):
            self.assertLess(time.monotonic(), until, job.text())
            time.sleep(0.05)
        return found[1]

    def top(self, address):
        done = subprocess.run([PROGRAM, "top", "--once", address], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_ddp(self):
        self.check("ddp")

    def test_shards(self):
        self.check("zero")

    def test_several_batches_in_a_step(self):
        self.check("accumulate")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Alone(unittest.TestCase):
    """In one process, which calls finish_step()."""

    def train(self, **options):
        sampler = bimetal.BalancedBatchSampler(10, 4)
        with bimetal.monitor(sampler, loss=lambda: 2.0, **options) as monitor:
            for _ in range(2):
                for _ in sampler:
                    sampler.finish_step(0.01)
            status = json.loads(page(monitor.address, "/status")) if monitor.address else None
        self.assertIsNone(sampler.watch)
        return status

    def run_of(self, folder, run, failure=None, **settings):
        """A loop with a page and a record, which ends well or not; what it has printed, and its record."""
        sampler = bimetal.BalancedBatchSampler(10, 4)
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(KeyboardInterrupt, ZeroDivisionError), \
                bimetal.page(sampler, loss=lambda: 2.0, epochs=1, run=folder / run, settings=settings) as shown:
            for _ in sampler:
                sampler.finish_step(0.01)
            shown.evaluated(0.5, accuracy=0.75)
            if failure:
                raise failure
        return output.getvalue(), json.loads((folder / run / "training.json").read_text())

    def test_a_page_has_a_record_that_runs_are_listed_by(self):
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as scratch:
            folder = pathlib.Path(scratch)
            output, record = self.run_of(folder, "one", rate=0.1, sizes=[3, 4], name='a "b"')
            self.assertRegex(output, r"^page at http://127\.0\.0\.1:\d+/open/\w+ \(a link for one browser\)\n$")
            self.assertEqual([record["state"], record["step"], record["loss"]], ["done", 3, 2.0])
            self.assertEqual(tomllib.loads(record["job"]), {"rate": 0.1, "sizes": [3, 4], "name": 'a "b"'})
            self.assertEqual(record["evaluations"][0]["metrics"], {"accuracy": 0.75})
            self.assertEqual(self.run_of(folder, "two", KeyboardInterrupt())[1]["state"], "stopped")
            self.assertEqual(self.run_of(folder, "three", ZeroDivisionError())[1]["state"], "failed")
            self.assertEqual(self.ended_by_itself(folder / "four", ""), "done")
            self.assertEqual(self.ended_by_itself(folder / "five", "raise ValueError"), "failed")
            with self.assertRaisesRegex(bimetal.Error, "settings are to be text"):
                bimetal.page(bimetal.BalancedBatchSampler(10, 4), loss=lambda: 2.0, settings={"model": object()})
            if PROGRAM:
                done = subprocess.run([PROGRAM, "runs", folder, "--json"], capture_output=True, text=True, timeout=60)
                states = {pathlib.Path(run["folder"]).name: run["state"] for run in json.loads(done.stdout)}
                self.assertEqual(states, {"one": "done", "two": "stopped", "three": "failed", "four": "done", "five": "failed"})

    def ended_by_itself(self, folder, last):
        """A script that never says that its loop is through."""
        script = f"""
import bimetal
sampler = bimetal.BalancedBatchSampler(10, 4)
bimetal.page(sampler, loss=lambda: 2.0, run={str(folder)!r})
for _ in sampler:
    sampler.finish_step(0.01)
{last}
"""
        subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
        return json.loads((folder / "training.json").read_text())["state"]

    def test_a_terminal_has_one_line_that_an_epoch_leaves(self):
        with mock.patch.object(sys, "stdout", Terminal()) as output, mock.patch.dict(os.environ, {"COLUMNS": "30", "TERM": "xterm"}):
            self.train(listen=None)
        rewritten = "step 1/3  0:00 left  loss 2.…"
        self.assertIn(f"\r\x1b[K{rewritten}", output.getvalue())
        stay = [line.rpartition("\x1b[K")[2] for line in output.getvalue().split("\n")]
        self.assertEqual([line.split()[1] for line in stay if line], ["3/3", "6/6"], "without epochs= of each epoch by itself")

    def test_what_is_not_known_is_left_out(self):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = self.train(progress=False, epochs=3)
        self.assertEqual(output.getvalue(), "")
        self.assertEqual([status["step"], status["steps"], status["loss"]], [6, 9, 2.0])
        self.assertIsNone(status["workers"][0]["wait_s"])

    def test_refusals(self):
        sampler = bimetal.BalancedBatchSampler(10, 4)
        with self.assertRaisesRegex(TypeError, "takes the loop's BalancedBatchSampler, not a Linear"):
            bimetal.monitor(nn.Linear(1, 1), loss=lambda: 1.0)
        with self.assertRaisesRegex(TypeError, "loss=lambda: loss"):
            bimetal.monitor(sampler, loss=1.0)
        without = {name: value for name, value in os.environ.items() if not name.startswith("BIMETAL_TOKEN")}
        with mock.patch.dict(os.environ, without, clear=True), self.assertRaisesRegex(bimetal.Error, "BIMETAL_TOKEN") as caught:
            bimetal.monitor(sampler, loss=lambda: 1.0, listen="0.0.0.0:0")
        self.assertEqual(caught.exception.code, "unauthorized")
        self.assertNotIn("--monitor", str(caught.exception))

    def test_beyond_loopback_it_asks_for_a_token(self):
        own = harness.own_address()
        with mock.patch.dict(os.environ, {"BIMETAL_TOKEN": "0123456789abcdef" * 2}), contextlib.redirect_stdout(io.StringIO()):
            with bimetal.monitor(bimetal.BalancedBatchSampler(10, 4), loss=lambda: 1.0, listen=f"{own}:0") as monitor:
                with self.assertRaisesRegex(urllib.error.HTTPError, "401"):
                    page(monitor.address, "/status")


if __name__ == "__main__":
    ranks.main(globals())
