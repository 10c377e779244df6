#!/usr/bin/env python3
"""The benchmark as a program: local ranks, ranks of a launcher, a rank that dies.

Usage: test_program.py PATH-OF-fabric_bench, or PATH-OF-bimetal_lite bench
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

PROGRAM = sys.argv[1:]
SHORT = ["--max", "64kb", "--seconds", "0.02"]
TIMEOUT_S = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


class Program(unittest.TestCase):
    def run_program(self, *arguments, env=None):
        return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=env, check=False)

    def check_report(self, text, ranks):
        report = json.loads(text)
        self.assertEqual(report["ranks"], ranks)
        self.assertEqual([r["bytes"] for r in report["results"]],
                         [256, 1024, 4096, 16384, 65536])
        for result in report["results"]:
            self.assertGreater(result["bus_gbytes_per_s"], 0)
            self.assertLessEqual(result["p50_us"], result["p99_us"])

    def test_local_ranks(self):
        done = self.run_program("allreduce", "--ranks", "3", "--json", *SHORT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_report(done.stdout, 3)

    def test_table_has_a_line_for_each_size(self):
        done = self.run_program("alltoall", "--ranks", "2", *SHORT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 2 + 5)

    def test_under_a_launcher(self):
        port = str(free_port())
        processes = []
        for rank in range(2):
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                "MASTER_PORT": port}
            processes.append(subprocess.Popen([*PROGRAM, "broadcast", "--json", *SHORT], env=env,
                                              stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0])
        self.check_report(outputs[0], 2)
        self.assertEqual(outputs[1], "")

    def test_under_torchrun_it_says_what_can_meet_there(self):
        env = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        done = self.run_program("allreduce", *SHORT, env=env)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("bimetal bench of the whole program", done.stderr)

    def test_bad_usage(self):
        done = self.run_program("allreduce", "--min", "2mb", "--max", "1mb")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--min", done.stderr)
        self.assertEqual(self.run_program("everything").returncode, 2)

    @unittest.skipUnless(os.path.exists(f"/proc/self/task/{os.getpid()}/children"), "needs /proc")
    def test_a_killed_rank_ends_the_run_with_its_name(self):
        with subprocess.Popen([*PROGRAM, "allreduce", "--ranks", "2", "--min", "1mb", "--max", "1mb",
                               "--seconds", "50"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 20
            while len(children_of(process.pid)) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            ranks = children_of(process.pid)
            self.assertEqual(len(ranks), 2)
            time.sleep(0.5)
            os.kill(ranks[1], signal.SIGKILL)
            _, errors = process.communicate(timeout=30)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("rank 1", errors)
            self.assertFalse(os.path.exists(f"/proc/{ranks[0]}"), "a rank was left behind")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
