#!/usr/bin/env python3
"""Two hosts, a job that one shares, and a code: nothing is copied, and where mDNS runs no address is typed."""

import json
import re
import subprocess
import time
import unittest

import job_on_hosts
import harness
import responders
from job_on_hosts import MBIT, ONE

WRONG = "acorn-actor-amber-apron"


class OnTwoHosts(job_on_hosts.JobOnHosts):
    RATES = [1000 * MBIT] * 2

    def variables(self, host, **more):
        return {"XDG_CONFIG_HOME": str(self.folder / f"config{host}"), **more}

    def setUp(self):
        super().setUp()
        for host, name in enumerate(("mac", "pc")):
            self.call_host(host, name)

    def call_host(self, host, name):
        folder = self.folder / f"config{host}" / "bimetal"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(name)

    def share(self, *arguments, host=0, **settings):
        job = self.on(host, "train", self.write_job(**settings), "--share", "--worker", ONE, *arguments,
                      environment=self.variables(host))
        job.wait_for_output("type there")
        return job

    @staticmethod
    def code(job):
        return re.findall(r"within two minutes: ([a-z-]+)", job.out + job.err)[-1]

    def enter(self, *arguments, code=None, host=1, **more):
        variables = self.variables(host, **more)
        if code:
            variables["BIMETAL_CODE"] = code
        return self.on(host, "join", *arguments, "--worker", ONE, environment=variables)

    def machines(self, host, *arguments):
        return self.on(host, "machines", *arguments, environment=self.variables(host)).done().out

    def first_step_after(self, begun, job):
        harness.wait_until(lambda: re.search(r"step [1-9]", job.out), "the first step", job)
        seconds = time.monotonic() - begun
        print(f"{self.id()}: {seconds:.1f} s from the second command to the first step shown")
        return seconds


class Share(OnTwoHosts):
    def test_a_code_lets_in_and_the_next_time_none_is_asked(self):
        job = self.share(train__steps=300)
        self.assertIn("bimetal join 10.199.0.1\n", job.out)
        begun = time.monotonic()
        guest = self.enter("10.199.0.1", code=self.code(job))
        self.assertLess(self.first_step_after(begun, job), 15 * harness.PATIENCE)
        for each in (job, guest):
            each.done()
        self.assertNotIn("not encrypted", job.err)
        self.assertEqual((self.machines(0), self.machines(1)), ("pc\n", "mac\n"))
        again = self.share(train__steps=5)
        guest = self.enter("10.199.0.1")
        for each in (again, guest):
            each.done()
        self.assertIn("pc was let in: this machine remembers it", again.err)
        self.assertIn("forgot pc", self.machines(0, "forget", "pc"))
        third = self.share(train__steps=5)
        self.assert_one_message(self.enter("10.199.0.1"), harness.UNAUTHORIZED, "bimetal machines forget mac")
        self.machines(1, "forget", "mac")
        guest = self.enter("10.199.0.1", code=self.code(third))
        for each in (third, guest):
            each.done()

    def test_wrong_codes_and_then_none(self):
        job = self.share(train__steps=5)
        code = self.code(job)
        for left in (4, 3, 2, 1, 0):
            said = f"{left} tries are left" if left else "good for nobody any more"
            self.assert_one_message(self.enter("10.199.0.1", code=WRONG), harness.UNAUTHORIZED, said)
        self.assert_one_message(self.enter("10.199.0.1", code=code), harness.UNAUTHORIZED, "tried wrongly too often")
        self.assert_one_message(self.enter("10.199.0.1", code="one two three"), harness.INVALID_ARGUMENT, "4 words")
        self.assert_one_message(self.enter("10.199.0.1"), harness.UNAUTHORIZED, "tried wrongly too often")
        job.interrupt()
        job.wait()

    def test_a_second_guest_comes_while_it_trains_and_gets_a_code_of_its_own(self):
        job = self.share(train__steps=20000)
        first = self.enter("10.199.0.1", code=self.code(job))
        harness.wait_until(lambda: re.search(r"step [1-9]", job.out), "the first step", job)
        used = self.code(job)
        self.call_host(1, "another-pc")
        told = json.loads(self.machines(1, "--json"))
        self.assertEqual(told["machines"], self.machines(1).split())
        (self.folder / "config1" / "bimetal" / "machines" / "mac").unlink()
        self.assert_one_message(self.enter("10.199.0.1"), harness.UNAUTHORIZED, "mac wants the code that it shows")
        harness.wait_until(lambda: self.code(job) != used, "a new code", job)
        second = self.enter("10.199.0.1", code=self.code(job))
        second.wait_for_output("which trains already")
        harness.wait_until(lambda: "another-pc was let in" in job.err, "word of it", job)
        for each in (job, first, second):
            each.interrupt()
        for each in (job, first, second):
            each.wait()

    def test_no_network(self):
        subprocess.run(self.network.command(0, ["ip", "link", "set", "eth0", "down"]), check=True)
        job = self.on(0, "train", self.write_job(), "--share", environment=self.variables(0))
        self.assert_one_message(job, harness.INVALID_ARGUMENT, "has no network")

    def test_without_a_responder_it_says_what_to_type(self):
        job = self.enter(DBUS_SYSTEM_BUS_ADDRESS="unix:path=/nonexistent")
        self.assert_one_message(job, harness.UNSUPPORTED, "bimetal join HOST")


class OnTwoHostsThatSee(OnTwoHosts):
    def setUp(self):
        super().setUp()
        self.responders = []
        for host in range(2):
            command = lambda *words, host=host: self.network.command(host, [str(word) for word in words])  # noqa: E731
            self.responders.append(responders.Responder(command, self.folder / f"mdns{host}", f"host{host}"))
            self.addCleanup(self.responders[-1].stop)

    def variables(self, host, **more):
        return super().variables(host, **{**self.responders[host].environment, **more})


@unittest.skipIf(responders.why_not(), responders.why_not())
class Discovery(OnTwoHostsThatSee):
    def test_no_address_is_typed(self):
        job = self.share(train__steps=300)
        begun = time.monotonic()
        guest = self.enter(code=self.code(job))
        self.assertLess(self.first_step_after(begun, job), 15 * harness.PATIENCE)
        for each in (job, guest):
            each.done()
        self.assertRegex(guest.out, r"1  \S+  on mac  1 worker  10\.199\.0\.1")

    def test_two_jobs_of_one_name(self):
        job = self.share(train__steps=5)
        other = self.share("--set", "train.seed=2", train__steps=5)
        self.assertRegex(other.out, r"bimetal join 10\.199\.0\.1:\d+")
        asked = self.enter(code=self.code(job))
        self.assert_one_message(asked, harness.INVALID_ARGUMENT, "2 shared jobs")
        self.assertEqual(len(re.findall(r"(?m)^[12]  \S+  on mac", asked.out)), 2, asked.out)
        for each in (job, other):
            each.interrupt()
        for each in (job, other):
            each.wait()

    def test_nothing_is_shared(self):
        self.assert_one_message(self.enter(), harness.TIMEOUT, "no shared job is seen", "bimetal join HOST")


if __name__ == "__main__":
    job_on_hosts.main()
