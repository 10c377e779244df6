#!/usr/bin/env python3
"""What of the program lies in the wheels, for Linux and for Windows: `bench` between the two, and `top` of a job that runs.

Programs: BIMETAL_LITE and BIMETAL_LITE_WINDOWS (each of a wheel), the latter run by the Wine of WINE_FOLDER; BIMETAL, whose job
is watched.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from peers import PATIENCE_S, Kind, PeerTest

HERE = pathlib.Path(__file__).resolve().parent
WINE = [str(HERE / "wine.sh"), os.environ.get("WINE_FOLDER", ""), "run"]
LINUX = Kind("Linux", "BIMETAL_LITE")
WINDOWS = Kind("Windows", "BIMETAL_LITE_WINDOWS", WINE)
SHORT = ["--min", "1kb", "--max", "64kb", "--seconds", "0.05", "--json"]


class Bench(PeerTest):
    def check(self, text, ranks):
        report = json.loads(text[text.index("{\n"):])  # Wine may say something before it
        self.assertEqual((report["ranks"], report["verified"]), (ranks, True))
        self.assertEqual([result["bytes"] for result in report["results"]], [1024, 4096, 16384, 65536])
        # Windows counts a process's time in steps of some 10 ms: short measurements may be free.
        self.assertTrue(any(result["cpu_us"] > 0 for result in report["results"]), text)

    def test_between_linux_and_windows(self):
        for kinds in ((LINUX, WINDOWS), (WINDOWS, LINUX)):
            with self.subTest(first=kinds[0].name):
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


if os.path.exists(os.environ.get("BIMETAL", "")):
    sys.path.insert(0, str(HERE.parent / "fault"))
    from harness import FaultTest

    class Top(FaultTest):
        def test_of_a_job_that_runs(self):
            job = self.train(self.write_job(), "--monitor", "127.0.0.1:0", workers=("cpu:threads=1", "cpu:threads=1"))
            job.wait_for_output("monitor at ")
            address = re.search(r"monitor at (\S+);", job.out)[1]
            for kind in (LINUX, WINDOWS):
                if kind.missing:
                    self.skipTest(kind.missing)
                with self.subTest(kind.name):
                    top = self.start("top", address, "--once", "--json", program=kind.command()).wait()
                    self.assertEqual(top.status, 0, top.err)
                    self.assertIn("phase", json.loads(top.out))
            job.interrupt()
            job.wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)
