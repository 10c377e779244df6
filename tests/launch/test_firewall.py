"""`bimetal launch` between two hosts (network namespaces) when something is in the way."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "network"))

import namespaces  # noqa: E402
import ssh_hosts  # noqa: E402
from launches import BIMETAL, SHOW, LaunchTest, harness, lines_of_ranks  # noqa: E402

HERE, THERE = "10.77.0.1", "10.77.0.2"


class Firewall(LaunchTest):
    def setUp(self):
        super().setUp()
        self.here, self.there = namespaces.Host(), namespaces.Host()
        self.addCleanup(self.there.remove)
        self.addCleanup(self.here.remove)
        namespaces.cable(self.here, "eth0", self.there, "eth0")
        self.here.address("eth0", HERE + "/24")
        self.there.address("eth0", THERE + "/24")
        keys = ssh_hosts.Keys(self.folder / "keys")
        sshd = ssh_hosts.Sshd(keys, [THERE], {harness.MARK: self.mark}, inside=self.there.command())
        self.addCleanup(sshd.stop)
        self.options = ["-H", f"localhost:1,{THERE}:1", "--ssh-port", sshd.port, *keys.options()]

    def from_here(self, *arguments, script):
        return self.start("launch", *self.options, *arguments, "--", "sh", "-c", script,
                          program=[*self.here.command(), BIMETAL])

    def test_the_ranks_meet_at_an_address_that_both_reach(self):
        job = self.from_here(script=SHOW).done()
        self.assertEqual([line[0].split(" at ")[1].split(":")[0] for line in lines_of_ranks(job).values()], [HERE] * 2)

    def test_a_blocked_port_is_named_before_any_rank_starts(self):
        # The packets are dropped without a word, as firewalls do.
        self.there.ip("rule", "add", "ipproto", "tcp", "dport", "29555", "blackhole")
        job = self.from_here("--master-port", 29555, script="echo started").wait()
        self.assertIn(job.status, (harness.TIMEOUT, harness.SYSTEM), job.err)
        self.assert_one_message(job, job.status, THERE, f"{HERE}:29555", "firewall", "--master-port", "--master-addr")
        self.assertNotIn("started", job.out)

    def test_a_cable_that_is_pulled(self):
        job_file = self.write_job(parallel__timeout_s=5)
        job = self.start("launch", *self.options, "--silence", 30, "--", BIMETAL, "train", job_file, "--worker",
                         "cpu:threads=1", program=[*self.here.command(), BIMETAL])
        self.wait_for_checkpoint(job)
        self.there.ip("link", "set", "eth0", "down")
        begun = time.monotonic()
        job.wait()
        seconds = time.monotonic() - begun
        print(f"the prompt is back after {seconds:.1f} s")
        # The first to miss the other rank is a step or a checkpoint that is being saved, whichever is under way.
        self.assertIn(job.status, (harness.PEER_LOST, harness.TIMEOUT), job.err)
        self.assertIn("rank 0 on localhost", job.error())
        self.assertIn(f"lost host {THERE}: it has not answered", job.err)
        self.assertLess(seconds, 15 * harness.PATIENCE, "--grace and --silence have been waited for")
        self.wait_until_nothing_is_left()  # there, once --silence is over

    def test_a_host_that_is_switched_off(self):
        job = self.start("launch", "-H", "localhost:1,10.77.0.9:1", *self.options[2:], "--", "true",
                         program=[*self.here.command(), BIMETAL]).wait()
        self.assertIn(job.status, (harness.TIMEOUT, harness.SYSTEM), job.err)
        self.assert_one_message(job, job.status, "10.77.0.9", "switched on")


if __name__ == "__main__":
    if reason := ssh_hosts.why_not() or namespaces.why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    harness.main()
