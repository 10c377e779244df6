#!/usr/bin/env python3
"""The fabric over MPI, between real processes of one family's mpirun.

Usage: test_mpi.py open_mpi|mpich; MPI_PEER and FABRIC_BENCH name the programs. Skipped (77) where the family is not
installed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import launchers
from launchers import Run

FAMILY = sys.argv.pop(1)
PEER = os.environ["MPI_PEER"]
FABRIC_BENCH = os.environ["FABRIC_BENCH"]


class OverMpi(unittest.TestCase):
    def check(self, ranks, carrier, **changes):
        with Run(FAMILY, ranks, [PEER, "check"], **changes) as run:
            status = run.finish()
            self.assertEqual(status, 0, run.text())
            ends = re.findall(r"rank (\d+): (\d+) calls, 0 wrong, by (\w+)", run.text())
            self.assertEqual(sorted(int(rank) for rank, _, _ in ends), list(range(ranks)), run.text())
            for _, calls, by in ends:
                self.assertGreater(int(calls), 1000)
                self.assertEqual(by, carrier, run.text())

    def test_every_collective(self):
        for ranks in (1, 2, 3, 5):
            with self.subTest(ranks=ranks):
                self.check(ranks, "mpi", BIMETAL_TRANSPORT="mpi")

    def test_ranks_that_meet_by_mpi_share_memory_on_one_host(self):
        self.check(2, "shm")

    def test_ranks_that_disagree_are_told(self):
        with Run(FAMILY, 3, [PEER, "differ"], BIMETAL_TRANSPORT="mpi") as run:
            run.finish()  # with any status: after a failure MPI may not be ended in good order
            for rank in range(3):
                self.assertIn(f"rank {rank}: told", run.text())
            self.assertEqual(run.left_behind(), [], run.text())

    def test_a_killed_rank_ends_all(self):
        with Run(FAMILY, 3, [PEER, "work"], BIMETAL_TRANSPORT="mpi") as run:
            run.read_until("works", 3)
            os.kill(run.pids[1], signal.SIGKILL)
            self.assertNotEqual(run.finish(), 0)
            self.assertEqual(run.left_behind(), [], run.text())

    def test_a_stopped_rank_is_named_in_time(self):
        begun = time.monotonic()
        with Run(FAMILY, 3, [PEER, "stop"], BIMETAL_TRANSPORT="mpi") as run:
            run.read_until("rank 0: (timeout|aborted)", 1)
            self.assertRegex(run.text(), r"(?s)rank [01]: timeout.*rank 2 ")
            self.assertLess(time.monotonic() - begun, 60)
            os.kill(run.pids[2], signal.SIGCONT)
            self.assertNotEqual(run.finish(), 0)
            self.assertEqual(run.left_behind(), [], run.text())

    def test_waiting_leaves_the_core_to_others(self):
        with Run(FAMILY, 2, [PEER, "idle"], BIMETAL_TRANSPORT="mpi") as run:
            self.assertEqual(run.finish(), 0, run.text())
            shares = [float(share) for share in re.findall(r"idle at ([\d.]+) of a core", run.text())]
            self.assertEqual(len(shares), 2)
            # A library that polls without a pause has 1 here.
            self.assertLess(max(shares), 0.2, run.text())

    def test_benchmark(self):
        arguments = ["allreduce", "--transport", "mpi", "--max", "1mb", "--seconds", "0.05", "--json"]
        with Run(FAMILY, 2, [FABRIC_BENCH, *arguments]) as run:
            self.assertEqual(run.finish(), 0, run.text())
            report = json.loads("".join(run.lines))
            self.assertEqual(report["ranks"], 2)
            self.assertEqual(report["transport"], "mpi")
            self.assertEqual(report["results"][-1]["bytes"], 1 << 20)


class Refusals(unittest.TestCase):
    def refused(self, status, *words, ranks=2, program=(PEER, "check"), **changes):
        with Run(FAMILY, ranks, list(program), BIMETAL_TRANSPORT="mpi", **changes) as run:
            self.assertNotEqual(run.finish(), 0, run.text())
            for word in (status, *words):
                self.assertIn(word, run.text())

    def test_libraries_and_what_does_not_go_with_mpi(self):
        for status, words, changes in (
                ("unsupported", ("/nowhere/libmpi.so", "BIMETAL_MPI_LIBRARY"), {"BIMETAL_MPI_LIBRARY": "/nowhere/libmpi.so"}),
                ("unsupported", ("MPI_",), {"BIMETAL_MPI_LIBRARY": "libc.so.6"}),
                ("invalid_argument", ("BIMETAL_ENCRYPTION",), {"BIMETAL_ENCRYPTION": "on"}),
                ("invalid_argument", ("of 7", "of 2"), {"RANK": "0", "WORLD_SIZE": "7", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                                                        "MASTER_PORT": "1"})):
            with self.subTest(changes):
                self.refused(status, *words, **changes)

    def test_the_library_of_another_mpirun(self):
        other = launchers.FAMILIES["mpich" if FAMILY == "open_mpi" else "open_mpi"]["library"]
        probe = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{other}')"],
                               capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"{other} is not installed")
        self.refused("invalid_argument", "has started 2 processes", "finds 1", BIMETAL_MPI_LIBRARY=other)

    def test_without_mpirun(self):
        done = subprocess.run([FABRIC_BENCH, "allreduce", "--transport", "mpi"], capture_output=True, text=True,
                              timeout=60, env=launchers.environment(), check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("mpirun", done.stderr)


if __name__ == "__main__":
    launchers.find(FAMILY)
    unittest.main()
