#!/usr/bin/env python3
"""`bimetal launch --share` on one host and `bimetal join` on another: a script that both have, a code, and nothing else."""

import os
import signal
import time
import unittest

import job_on_hosts
import harness
import responders
from test_share import WRONG, OnTwoHosts, OnTwoHostsThatSee

# A rank's line about itself. Then it takes part in a sum, or does what its first argument asks of one of them.
SCRIPT = """
import os, pathlib, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"rank {rank}/{size} local {os.environ['LOCAL_RANK']}/{os.environ['LOCAL_WORLD_SIZE']} node {os.environ['NODE_RANK']}",
      *sys.argv[1:], pathlib.Path.cwd().name, flush=True)
what, who = (sys.argv[1:] + ["sum", "0"])[:2]
if what == "sum":
    import bimetal, torch, torch.distributed as dist
    dist.init_process_group("bimetal")
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    print("sum", total.item(), os.environ["BIMETAL_ENCRYPTION"], bimetal.transport(), flush=True)
    dist.destroy_process_group()
elif what == "fail" and rank == int(who):
    sys.exit(7)
elif what == "wait" or (what == "last" and rank == int(who)) or what == "fail":
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
"""


class WithScript(OnTwoHosts):
    def setUp(self):
        super().setUp()
        self.folders = [self.folder / name for name in ("mac", "pc")]
        for folder in self.folders:
            folder.mkdir()
            (folder / "train.py").write_text(SCRIPT)

    def launch(self, *arguments, script=("train.py",)):
        job = self.on(0, "launch", "--share", *arguments, *script, environment=self.variables(0), folder=self.folders[0])
        job.wait_for_output("type there")
        return job

    def come(self, *arguments, code=None, host="10.199.0.1"):
        more = {"BIMETAL_CODE": code} if code else {}
        return self.on(1, "join", *([host] if host else []), *arguments, environment=self.variables(1, **more), folder=self.folders[1])

    def variables(self, host, **more):
        # The two have memory in common, which machines do not; and torch leaves a folder behind.
        return super().variables(host, BIMETAL_ISLAND=f"host{host}", TORCHINDUCTOR_CACHE_DIR=str(self.folder / "inductor"), **more)

    def both(self, *script, arguments=(), here=()):
        host = self.launch(*arguments, script=("train.py", *script))
        guest = self.come(*here, code=self.code(host))
        return host, guest


class LaunchShared(WithScript):
    def test_a_script_on_two_machines(self):
        host, guest = self.both(arguments=("-n", "1", "--world-size", "3"), here=("-n", "2"))
        for job in (host, guest):
            job.done()
        self.assertRegex(host.out, r"\[0\] rank 0/3 local 0/1 node 0 mac\n")
        self.assertRegex(guest.out, r"\[1\] rank 1/3 local 0/2 node 1 pc\n")
        self.assertRegex(guest.out, r"\[2\] rank 2/3 local 1/2 node 1 pc\n")
        for rank, out in ((0, host.out), (1, guest.out), (2, guest.out)):
            self.assertIn(f"[{rank}] sum 6.0 on tcp\n", out)
        # Each remembers the other: the next time no code is asked for.
        self.assertEqual((self.machines(0), self.machines(1)), ("pc\n", "mac\n"))
        host = self.launch(script=("train.py", "end"))
        guest = self.come()
        for job in (host, guest):
            job.done()
        self.assertIn("pc was let in: this machine remembers it", host.err)

    def test_a_wrong_code_and_a_guest_that_lacks_the_script(self):
        host = self.launch(script=("train.py", "end"))
        self.assert_one_message(self.come(code=WRONG), harness.UNAUTHORIZED, "4 tries are left")
        (self.folders[1] / "train.py").rename(self.folders[1] / "other.py")
        self.assert_one_message(self.come(code=self.code(host)), harness.INVALID_ARGUMENT, "runs train.py, which is not in",
                                "bimetal join 10.199.0.1 -- COMMAND")
        self.assert_one_message(self.come("-n", "2", "--", "other.py"), harness.INVALID_ARGUMENT, "waits for 1 more", "offer fewer",
                                "--world-size 3")
        guest = self.come("--", "other.py", "end")
        for job in (host, guest):
            job.done()
        self.assertIn("[1] rank 1/2", guest.out)

    def test_what_the_host_names_is_no_command_of_the_guests(self):
        for script in (("sh", "-c", "touch was_here"), ("../pc/train.py",), (str(self.folders[0] / "train.py"),)):
            with self.subTest(script):
                host = self.launch("--", script=script)
                self.assert_one_message(self.come(code=self.code(host)), harness.INVALID_ARGUMENT,
                                        "what another machine names is not run here")
                host.interrupt()
                host.wait()
        self.assertFalse((self.folders[1] / "was_here").exists())

    def test_a_failure_is_told_on_both(self):
        for who in (1, 0):
            with self.subTest(who):
                host, guest = self.both("fail", str(who))
                first, second = (guest, host) if who else (host, guest)
                self.assert_one_message(first, 7, f"rank {who}", "exit status 7")
                self.assert_one_message(second, harness.PEER_LOST, f"rank {who}", "exit status 7")

    def test_ctrl_c_reaches_all(self):
        for stops in (0, 1):
            with self.subTest(stops):
                jobs = self.both("wait") if stops == 0 else (self.launch(script=("train.py", "wait")), self.come())
                for job in jobs:
                    job.wait_for_output("node")
                jobs[stops].interrupt()
                for job in jobs:
                    self.assertEqual(job.wait().status, 130, job.err)
                    self.assertIn("interrupted\n", job.out)

    def test_the_first_machine_waits_for_the_others_ends(self):
        host, guest = self.both("last", "1")
        guest.wait_for_output("node")
        self.assertIsNone(host.process.poll())
        guest.interrupt()
        for job in (host, guest):
            self.assertEqual(job.wait().status, 130, job.err)

    def test_a_machine_that_is_silent_is_lost_and_one_that_is_done_is_not(self):
        host, guest = self.both("last", "0", arguments=("--silence", "3"))
        guest.done()
        time.sleep(6)
        self.assertIsNone(host.process.poll(), host.err)
        host.interrupt()
        self.assertEqual(host.wait().status, 130, host.err)
        host, guest = self.launch("--silence", "3", script=("train.py", "wait")), self.come()
        for job in (host, guest):
            job.wait_for_output("node")
        os.kill(guest.pid, signal.SIGSTOP)
        self.assert_one_message(host, harness.PEER_LOST, "lost machine", "ranks 1-1")
        os.kill(guest.pid, signal.SIGCONT)
        self.assertNotEqual(guest.wait().status, 0)

    def test_a_first_machine_that_is_gone(self):
        host, guest = self.both("wait")
        for job in (host, guest):
            job.wait_for_output("node")
        host.process.kill()
        host.wait()
        self.assert_one_message(guest, harness.PEER_LOST, "first machine", "is gone")

    def test_options_that_do_not_fit(self):
        job = self.on(0, "launch", "--share", "-H", "localhost:2", "true", environment=self.variables(0))
        self.assertNotEqual(job.wait().status, 0)
        self.assertIn("excludes", job.err)
        host = self.launch(script=("train.py", "end"))
        self.assert_one_message(self.come("--worker", "cpu", code=self.code(host)), harness.INVALID_ARGUMENT, "bimetal launch", "-n N")
        host.interrupt()
        host.wait()
        train = self.share(train__steps=5)
        self.assert_one_message(self.come("-n", "2", code=self.code(train)), harness.INVALID_ARGUMENT, "job file", "--worker")
        train.interrupt()
        train.wait()


@unittest.skipIf(responders.why_not(), responders.why_not())
class LaunchSeen(WithScript, OnTwoHostsThatSee):
    def test_no_address_is_typed(self):
        host = self.launch(script=("train.py", "end"))
        guest = self.come(code=self.code(host), host=None)
        for job in (host, guest):
            job.done()
        self.assertRegex(guest.out, r"1  train\.py  on mac  1 worker  10\.199\.0\.1")
        self.assertIn("[1] rank 1/2", guest.out)


if __name__ == "__main__":
    job_on_hosts.main()
