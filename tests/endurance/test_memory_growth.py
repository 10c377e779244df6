#!/usr/bin/env python3
"""A long job must not grow: the resident size of each rank after 2,000 steps against that after warm-up.

Usage: test_memory_growth.py BIMETAL JOB.toml
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

BIMETAL, JOB = sys.argv[1:3]
STEPS, WARM_UP = 2400, 400
ALLOWED_GROWTH_KIB = 8 * 1024
TIMEOUT_S = 400


def resident_kib(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def children_of(pid: int) -> list[int]:
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def steps_done(log: pathlib.Path) -> int:
    """The newest checkpoint's step: the job's own sign of life, written every 200 steps."""
    steps = [int(p.name.split("-")[1]) for p in log.glob("step-*") if p.name.split("-")[1].isdigit()]
    return max(steps, default=0)


@unittest.skipUnless(sys.platform == "linux", "reads /proc")
class MemoryGrowth(unittest.TestCase):
    def test_two_ranks_do_not_grow_over_2000_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = pathlib.Path(folder, "checkpoints")
            command = [BIMETAL, "train", JOB, "--worker", "cpu:threads=1", "--worker", "cpu:threads=1",
                       "--set", "model.name=mlp", "--set", "train.global_batch=32",
                       "--set", f"train.steps={STEPS}", "--set", "train.epochs=100",
                       "--set", "train.evaluate=false", "--set", "checkpoint.every_steps=200",
                       "--set", f"checkpoint.dir={str(checkpoints)!r}"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            early, late = {}, {}
            deadline = time.monotonic() + TIMEOUT_S
            try:
                while process.poll() is None and time.monotonic() < deadline:
                    step = steps_done(checkpoints)
                    try:
                        sizes = {pid: resident_kib(pid) for pid in children_of(process.pid)}
                    except FileNotFoundError:
                        continue
                    if WARM_UP <= step and not early:
                        early = sizes
                    if step >= WARM_UP and len(sizes) == 2 and all(sizes.values()):
                        late = sizes
                    time.sleep(0.05)
            finally:
                process.kill()
                errors = process.communicate()[1]
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual(len(early), 2, "the ranks were not seen after warm-up")
            for pid, before in early.items():
                self.assertLess(late[pid] - before, ALLOWED_GROWTH_KIB,
                                f"process {pid} grew from {before} to {late[pid]} KiB")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
