#!/usr/bin/env python3
"""A network that hiccups: a cable that is out for less than fabric.peer_timeout_s costs a job no more than that time; for longer,
it ends the job, whose ranks name each other and the key."""

import re
import time

import job_on_hosts
import harness
from job_on_hosts import MBIT, ONE, JobOnHosts
from shaped_network import run

SPARE_S = 4 * harness.PATIENCE  # for a busy machine, and a step
TOLD = "nothing for 3 s"

PYTHON_LOOP = """
import datetime, time
import torch, torch.distributed as dist
import bimetal
dist.init_process_group("bimetal", timeout=datetime.timedelta(seconds=60))
last = time.monotonic()
for step in range(1_000_000):
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert x[0] == 2
    now = time.monotonic()
    if step == 0 or now - last > 0.4: print(f"step {step} took {now - last:.2f} s", flush=True)
    last = now
"""


@harness.waits
class Stalls(JobOnHosts):
    RATES = [400 * MBIT, 400 * MBIT]

    def on(self, host, *arguments):
        """Without the memory that hosts of this machine have in common."""
        return super().on(host, *arguments, environment={"BIMETAL_ISLAND": f"host{host}"})

    def port(self, state):
        run("ip", "-n", self.network.middle, "link", "set", "port1", state)

    def stall(self, seconds):
        self.port("down")
        time.sleep(seconds)
        self.port("up")

    def begin(self, *arguments, **settings):
        return super().begin(*arguments, checkpoint__every_steps=1, checkpoint__keep=1, train__global_batch=256, **settings)

    def assert_goes_on(self, jobs, stall_s):
        """Another step is saved soon after the cable is back."""
        self.stall(stall_s)
        back = time.monotonic()
        self.last = self.saved_steps()[-1]
        harness.wait_until(lambda: self.saved_steps()[-1:] > [self.last] or jobs[0].process.poll() is not None, "steps", jobs[0])
        took = time.monotonic() - back
        for job in jobs:
            self.assertIsNone(job.process.poll(), f"{stall_s} s: {job.out}\n{job.err}")
        print(f"a stall of {stall_s} s: the next step {took:.1f} s after it")
        self.assertLess(took, stall_s + SPARE_S)

    def begin_with_server(self, **settings):
        """A server on the first host, the only worker on the second one."""
        job_file = self.write_job(checkpoint__every_steps=1, checkpoint__keep=1, train__global_batch=256, parallel__mode="server",
                                  **settings)
        first = self.serve(job_file, "--worker", "none")
        second = self.join(1, "--worker", ONE)
        self.wait_for_checkpoint(first)
        return first, second

    def survive(self, jobs, stalls=(5,)):
        for seconds in stalls:
            self.assert_goes_on(jobs, seconds)
        self.assertIn(TOLD, jobs[0].err + jobs[1].err)
        jobs[0].interrupt()
        for job in jobs:
            job.wait()
        self.assert_nothing_left()

    def test_all_reduce(self):
        self.survive(self.begin(), (0.5, 2, 5))

    def test_shards(self):
        self.survive(self.begin(zero__level=3))

    def test_stages(self):
        self.survive(self.begin(mesh__stages=2, mesh__micro_batches=4))

    def test_server(self):
        self.survive(self.begin_with_server())

    def test_too_long_for_a_server(self):
        """Its job waits for this worker or others, for as long as they may be in coming. The cable stays down."""
        first, second = self.begin_with_server(cluster__join_timeout_s=10, fabric__peer_timeout_s=3)
        self.port("down")
        self.assert_one_message(second, harness.PEER_LOST, "server 0 ", "fabric.peer_timeout_s")
        self.assert_one_message(first, harness.TIMEOUT, "no worker was there for 10 s (cluster.join_timeout_s)")
        self.assertRegex(first.out + first.err, r"worker 0 .* says nothing any more")

    def test_too_long_for_stages(self):
        jobs = self.begin("--no-elastic", mesh__stages=2, mesh__micro_batches=4, fabric__peer_timeout_s=3)
        self.port("down")
        for number, job in enumerate(jobs):
            self.assert_one_message(job, harness.PEER_LOST, f"rank {1 - number} ", "fabric.peer_timeout_s")
        self.assert_nothing_left()

    def test_of_two_halves_one_goes_on_and_the_other_comes_back(self):
        first, second = self.begin(fabric__peer_timeout_s=3)
        self.port("down")
        first.wait_for_output("1 worker goes on")
        time.sleep(2)
        self.assertNotIn("goes on from", second.out, "both halves train")
        self.port("up")
        first.wait_for_output("2 workers go on")
        first.interrupt()
        for job in (first, second):
            job.done(harness.INTERRUPTED)
        self.assert_nothing_left()

    def test_a_process_that_has_gone_is_known_at_once(self):
        first, second = self.begin(fabric__peer_timeout_s=60)
        run("ip", "netns", "exec", self.network.namespaces[1], "kill", "-KILL", str(self.ranks_of(second)[0]))
        began = time.monotonic()
        first.wait_for_output("1 worker goes on")
        self.assertLess(time.monotonic() - began, harness.patient(10))
        self.assert_one_message(second, harness.PEER_LOST, "rank 1 ")
        first.end()

    def python_ranks(self):
        script = self.folder / "loop.py"
        script.write_text(PYTHON_LOOP)
        python = str(harness.REPOSITORY / ".venv" / "bin" / "python")
        return [self.start(program=self.network.command(rank, [python, str(script)]), environment={
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": self.network.address(0), "MASTER_PORT": "29571",
            "BIMETAL_TOKEN_FILE": str(self.token), "BIMETAL_ISLAND": f"host{rank}",
            "PYTHONPATH": str(harness.REPOSITORY / "build" / "python")})
            for rank in range(2)]

    def test_python(self):
        ranks = self.python_ranks()
        for rank in ranks:
            rank.wait_for_output("step 0")
        time.sleep(1)
        for seconds in (0.5, 2, 5):
            before = [rank.out.count("step ") for rank in ranks]
            self.stall(seconds)
            for rank, count in zip(ranks, before):
                harness.wait_until(lambda rank=rank, count=count: rank.out.count("step ") > count or rank.process.poll() is not None,
                                   "a late step", rank)
                self.assertIsNone(rank.process.poll(), rank.err)
                took = max(float(found) for found in re.findall(r"took (\S+) s", rank.out))
                self.assertLess(took, 2 * seconds + SPARE_S)
            print(f"a stall of {seconds} s: a step of {took} s")
        self.assertIn(TOLD, ranks[0].err + ranks[1].err)
        self.port("down")
        for number, rank in enumerate(ranks):
            self.assertNotEqual(rank.wait().status, 0)
            self.assertIn("BIMETAL_PEER_TIMEOUT_S", rank.err)
            self.assertIn(f"rank {1 - number} ", rank.err)


if __name__ == "__main__":
    job_on_hosts.main()
