"""`bimetal launch` over a real sshd: 127.0.0.2 and 127.0.0.3 are the other hosts, 127.0.0.1 is this one."""

import json
import os
import pathlib
import re
import signal
import sys
import time

import ssh_hosts
from launches import (BIMETAL, OTHER_VERSION, SHOW, WAIT, WAIT_FOR_SIGNALS, LaunchTest, free_port, harness,
                      lines_of_ranks, wait_until)

HOSTS = ["127.0.0.2", "127.0.0.3"]


class SshTest(LaunchTest):
    """Each test has an sshd of its own: what it starts carries the test's mark."""

    def setUp(self):
        super().setUp()
        self.keys = ssh_hosts.Keys(self.folder / "keys")
        self.sshd = ssh_hosts.Sshd(self.keys, HOSTS, {harness.MARK: self.mark})
        self.addCleanup(self.sshd.stop)

    def over_ssh(self, hosts, *arguments, key="user", **options):
        port = () if "--ssh-port" in arguments else ("--ssh-port", self.sshd.port)
        return self.launch("-H", hosts, *port, *self.keys.options(key), *arguments, **options)


class Ssh(SshTest):
    def test_every_rank_knows_its_place(self):
        job = self.over_ssh("127.0.0.2:1,127.0.0.3:2", script=SHOW).done()
        lines = lines_of_ranks(job)
        port = lines[0][0].rsplit(":", 1)[1]
        self.assertEqual(lines, {0: [f"rank 0/3 local 0/1 node 0 at 127.0.0.2:{port}"],
                                 1: [f"rank 1/3 local 0/2 node 1 at 127.0.0.2:{port}"],
                                 2: [f"rank 2/3 local 1/2 node 1 at 127.0.0.2:{port}"]})
        self.assertIn("127.0.0.3 1-2", job.err)

    def test_a_host_file(self):
        (self.folder / "hosts").write_text("127.0.0.2 slots=2  # the big one\n127.0.0.3\n")
        job = self.launch("--hostfile", self.folder / "hosts", "-n", 2, "--ssh-port", self.sshd.port,
                          *self.keys.options(), script=SHOW).done()
        self.assertEqual(len(lines_of_ranks(job)), 2)

    def test_bimetal_train_on_this_and_another_host(self):
        report = self.folder / "report.json"
        self.over_ssh("localhost:1,127.0.0.2:1", "--", BIMETAL, "train", self.write_job(train__steps=30),
                      "--worker", "cpu:threads=1", "--report", report).done()
        figures = json.loads(report.read_text())
        self.assertEqual(figures["world_size"], 2)
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), 30 * 64)

    def test_the_token_reaches_all_and_is_seen_nowhere(self):
        secret = "a-secret-of-this-test-alone"
        job = self.over_ssh("localhost:1,127.0.0.2:1", script="echo $BIMETAL_TOKEN | cksum; " + WAIT,
                            environment={"BIMETAL_TOKEN": secret, "BIMETAL_DEBUG": "trace"})
        self.wait_for_ready(job, 2)
        command_lines = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.processes()]
        self.assertFalse(any(secret.encode() in line for line in command_lines))
        self.assertEqual({harness.variable_of(pid, "BIMETAL_TOKEN") for pid in self.ranks().values()}, {secret})
        sums = {lines[0] for lines in lines_of_ranks(job).values()}
        self.assertEqual(len(sums), 1, job.out)
        job.interrupt()
        job.wait()
        self.assertNotIn(secret, job.out + job.err)
        self.assertNotIn(secret, pathlib.Path(self.sshd.log.name).read_text(errors="replace"))

    def test_variables_and_folder_go_along(self):
        job = self.over_ssh("127.0.0.2:1", "--env", "GREETING", "--env", "WORD=b c",
                            script="echo $GREETING $WORD $BIMETAL_X; pwd",
                            environment={"GREETING": "hello", "BIMETAL_X": "seen"}).done()
        self.assertEqual(lines_of_ranks(job)[0], ["hello b c seen", str(self.folder)])

    def test_the_program_that_ssh_finds_is_there_for_the_ranks(self):
        """Though its folder is in nobody's PATH."""
        for options in ((), ("--remote-bimetal", BIMETAL)):
            with self.subTest(options):
                job = self.over_ssh("127.0.0.2:1", *options, "--", "bimetal", "--version").done()
                self.assertEqual(len(lines_of_ranks(job)[0]), 1, job.out)

    def test_a_python_that_misses_a_module_is_told_what_hands_it_on(self):
        (self.folder / "here").mkdir()
        (self.folder / "here" / "module_of_this_test.py").write_text("print('found')\n")
        command = ["--", sys.executable, "-c", "import module_of_this_test"]
        path = {"PYTHONPATH": str(self.folder / "here")}
        job = self.over_ssh("127.0.0.2:1", *command, environment=path).wait()
        self.assert_one_message(job, 1, "rank 0 on 127.0.0.2", "--env PATH", "--env PYTHONPATH")
        self.assertIn("ModuleNotFoundError", job.err)
        job = self.over_ssh("127.0.0.2:1", "--env", "PYTHONPATH", *command, environment=path).done()
        self.assertEqual(lines_of_ranks(job)[0], ["found"])
        job = self.launch("-n", 1, *command).done(1)
        self.assertNotIn("--env", job.err)

    def test_ctrl_c_reaches_other_hosts(self):
        job = self.over_ssh("localhost:1,127.0.0.2:1",
                            script="trap 'echo interrupted; exit 0' INT; " + WAIT_FOR_SIGNALS)
        self.wait_for_ready(job, 2)
        job.end()
        self.assertEqual(job.out.count("interrupted"), 2, job.out)

    def test_a_failure_there_ends_the_ranks_here(self):
        job = self.over_ssh("localhost:2,127.0.0.2:1", script="[ $RANK = 2 ] && exit 7; sleep 600").wait()
        self.assert_one_message(job, 7, "rank 2", "127.0.0.2", "exit status 7")

    def test_a_killed_rank_there_is_named(self):
        job = self.over_ssh("localhost:1,127.0.0.2:1", script=WAIT)
        self.wait_for_ready(job, 2)
        pid = self.ranks()[1]
        os.kill(pid, signal.SIGKILL)
        self.assert_one_message(job, 128 + 9, "rank 1 on 127.0.0.2", f"pid {pid}", "signal 9")

    def test_nothing_outlives_a_killed_launcher(self):
        job = self.over_ssh("localhost:1,127.0.0.2:1,127.0.0.3:1", script=WAIT)
        self.wait_for_ready(job, 3)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()

    def ssh_of(self, host):
        return next(pid for pid in self.processes()
                    if pathlib.Path(f"/proc/{pid}/comm").read_text() == "ssh\n"
                    and host.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))

    def test_a_lost_connection_ends_the_job_on_both_sides(self):
        job = self.over_ssh("localhost:1,127.0.0.2:1", script=WAIT)
        self.wait_for_ready(job, 2)
        os.kill(self.ssh_of("127.0.0.2"), signal.SIGKILL)
        self.assert_one_message(job, harness.PEER_LOST, "127.0.0.2", "ranks 1-1")

    def test_an_elastic_job_outlives_lost_ranks_and_hosts(self):
        """A rank there comes back; then the host is gone."""
        report = self.folder / "report.json"
        job_file = self.write_job(train__steps=2000, train__global_batch=16, elastic__min_workers=1, elastic__keeper="either")
        job = self.over_ssh("localhost:1,127.0.0.2:2", "--restart", 1, "--", BIMETAL, "train", job_file, "--report", report,
                            *(["--worker", "cpu:threads=1"] * 2))
        self.wait_for_checkpoint(job)
        os.kill(self.ranks()[1], signal.SIGKILL)
        job.wait_for_output("3 workers go on")
        os.kill(self.ssh_of("127.0.0.2"), signal.SIGKILL)
        job.wait_for_output("1 worker goes on")
        job.done()
        self.assertIn("(ranks 1-2); the other ranks go on", job.err)
        self.assertEqual(sum(worker["samples"] for worker in json.loads(report.read_text())["workers"]), 2000 * 16)

    def test_a_silent_network_ends_the_job_on_both_sides(self):
        job = self.over_ssh("localhost:1,127.0.0.2:1", "--silence", 3, script=WAIT)
        self.wait_for_ready(job, 2)
        ssh, far_rank = self.ssh_of("127.0.0.2"), self.ranks()[1]
        time.sleep(4)  # an idle job is no silent one
        self.assertIsNone(job.process.poll(), job.err)
        os.kill(ssh, signal.SIGSTOP)
        wait_until(lambda: harness.state_of(far_rank) in ("gone", "Z"), "the end of the rank there", job)
        self.assert_one_message(job, harness.PEER_LOST, "127.0.0.2", "no word from it for 3 s")

    def test_once_a_rank_has_failed_a_host_that_gives_no_answer_is_not_waited_for(self):
        sign = self.folder / "fail"
        job = self.over_ssh("localhost:1,127.0.0.2:1", "--grace", 30,
                            script=f"echo ready; if [ $RANK = 0 ]; then while [ ! -e {sign} ]; do sleep 0.1; done; exit 3; fi; "
                                   "sleep 600 & wait")
        self.wait_for_ready(job, 2)
        os.kill(self.ssh_of("127.0.0.2"), signal.SIGSTOP)
        begun = time.monotonic()
        sign.touch()
        job.done(3)
        self.assertLess(time.monotonic() - begun, 25, "--grace alone is 30 s")
        self.assertIn("rank 0 on localhost", job.error())
        self.assertIn("lost host 127.0.0.2: it has not answered", job.err)


class Refusals(SshTest):
    def test_what_cannot_be_launched(self):
        gone = self.folder / "gone"
        gone.mkdir()
        strict = ("--ssh-option", "StrictHostKeyChecking=yes", "--ssh-option", f"UserKnownHostsFile={self.folder / 'nobody'}")
        for hosts, arguments, options, status, *parts in (
                ("no-such-host.invalid:1", (), {}, harness.SYSTEM, "no-such-host.invalid", "no host of that name"),
                ("localhost:1,no-such-host.invalid:1,127.0.0.2:1", (), {}, harness.SYSTEM, "no-such-host.invalid"),
                ("127.0.0.2:1", (), {"key": "stranger"}, harness.UNAUTHORIZED, "127.0.0.2", "ssh-copy-id"),
                ("127.0.0.2:1", ("--ssh-port", free_port("127.0.0.2")), {}, harness.SYSTEM, "127.0.0.2", "--ssh-port", "sshd"),
                ("127.0.0.2:1", ("--remote-bimetal", "/nowhere/bimetal"), {}, harness.INVALID_ARGUMENT, "127.0.0.2", "/nowhere/bimetal",
                 "--remote-bimetal"),
                ("localhost:1,127.0.0.2:1", ("--remote-bimetal", OTHER_VERSION), {}, harness.PROTOCOL_MISMATCH, "127.0.0.2", "0.0.9",
                 "install the same version"),
                ("localhost:1,127.0.0.2:1", ("--env", "PATH=/nowhere"), {"command": "sleep"}, harness.INVALID_ARGUMENT, "sleep",
                 "/nowhere", "--env PATH"),
                ("127.0.0.2:1", ("--chdir", gone / "none"), {}, harness.SYSTEM, "127.0.0.2", str(gone / "none")),
                ("127.0.0.2:1,127.0.0.3:1", ("--master-addr", "192.0.2.1"), {}, harness.SYSTEM, "192.0.2.1", "--master-addr")):
            with self.subTest(hosts, arguments=arguments):
                command = [options.pop("command"), "600"] if "command" in options else ["sh", "-c", WAIT]
                self.assert_refused(self.over_ssh(hosts, *arguments, "--", *command, **options), status, *parts)
        job = self.launch("-H", "127.0.0.2:1", "--ssh-port", self.sshd.port, *strict, script="true")
        self.assert_refused(job, harness.UNAUTHORIZED, "127.0.0.2", "host key", f"ssh -p {self.sshd.port} 127.0.0.2 true")


class LoginShells(SshTest):
    def test_what_the_shell_prints_first_does_no_harm(self):
        """A banner and a profile that talks, as many machines have them."""
        talking = self.folder / "talking"
        talking.write_text("#!/bin/sh\necho 'Welcome to host7!'\necho 'bimetal-agent is no greeting'\n"
                           f'exec {BIMETAL} "$@"\n')
        talking.chmod(0o755)
        job = self.over_ssh("127.0.0.2:1", "--remote-bimetal", talking, script=SHOW).done()
        self.assertEqual(len(re.findall(r"rank 0/1", job.out)), 1)


if __name__ == "__main__":
    if reason := ssh_hosts.why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    harness.main()
