#!/usr/bin/env python3
"""The parts of the program in the wheels, for Linux on both processors and for Windows: `bench` between them, and `top`
of a job that runs.

Programs: BIMETAL_LITE, BIMETAL_LITE_ARM64 and BIMETAL_LITE_WINDOWS (each of a wheel), the second run by qemu, the last by the Wine
of WINE_FOLDER; BIMETAL (else build/bimetal), whose job is watched.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from peers import PATIENCE_S, PeerTest, kinds_of

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fault"))

from harness import BIMETAL, FaultTest  # noqa: E402

LINUX, WINDOWS, ARM64 = kinds_of("BIMETAL_LITE")
SHORT = ["--min", "1kb", "--max", "64kb", "--seconds", "0.05", "--json"]


class Bench(PeerTest):
    def check(self, text, ranks):
        report = json.loads(text[text.index("{\n"):])  # Wine may say something before it
        self.assertEqual((report["ranks"], report["verified"]), (ranks, True))
        self.assertEqual([result["bytes"] for result in report["results"]], [1024, 4096, 16384, 65536])
        # Windows counts a process's time in steps of some 10 ms: short measurements may be free.
        self.assertTrue(any(result["cpu_us"] > 0 for result in report["results"]), text)

    def test_between_systems(self):
        for kinds in ((LINUX, WINDOWS), (WINDOWS, LINUX), (LINUX, ARM64), (ARM64, LINUX)):
            with self.subTest(" and ".join(kind.name for kind in kinds)):
                peers = self.start(kinds, "bench", "allreduce", *SHORT)
                statuses = [peer.wait() for peer in peers]
                self.assertEqual(statuses, [0, 0], "\n".join(peer.output() for peer in peers))
                self.check(peers[0].output(), 2)

    def test_windows_starts_its_own_ranks(self):
        peer, = self.start((WINDOWS,), "--version")  # skips where there is none
        self.assertEqual(peer.wait(), 0, peer.output())
        done = subprocess.run(WINDOWS.command("bench", "allreduce", "--ranks", "3", "--transport", "tcp", *SHORT),
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check(done.stdout, 3)


@unittest.skipUnless(os.path.exists(BIMETAL), "no program whose job could be watched (BIMETAL)")
class Top(FaultTest):
    def test_of_a_job_that_runs(self):
        job = self.train(self.write_job(), "--monitor", "127.0.0.1:0", workers=("cpu:threads=1", "cpu:threads=1"))
        job.wait_for_output("monitor at ")
        address = re.search(r"monitor at (\S+);", job.out)[1]
        for kind in (LINUX, WINDOWS):
            with self.subTest(kind.name):
                if kind.missing:
                    self.skipTest(kind.missing)
                top = self.start("top", address, "--once", "--json", program=kind.command()).done()
                self.assertIn("phase", json.loads(top.out))
        job.interrupt()
        job.wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)
