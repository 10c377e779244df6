"""`bimetal launch` on this machine alone."""

import os
import re
import signal
import socket
import subprocess

from launches import BIMETAL, SHOW, WAIT, WAIT_FOR_SIGNALS, LaunchTest, harness, lines_of_ranks
from test_buttons import Browser


class Local(LaunchTest):
    def test_every_rank_knows_its_place(self):
        job = self.launch("-n", 3, script=SHOW).done()
        lines = lines_of_ranks(job)
        self.assertEqual(sorted(lines), [0, 1, 2])
        for rank in range(3):
            self.assertRegex(lines[rank][0], rf"^rank {rank}/3 local {rank}/3 node 0 at 127\.0\.0\.1:\d+$")
        self.assertEqual(len({line[0].rsplit(":")[1] for line in lines.values()}), 1)

    def test_a_file_in_python_and_options_of_its_own(self):
        script = self.folder / "train.py"
        script.write_text("import os, sys, bimetal\nprint(os.environ['RANK'], *sys.argv[1:])\n")
        job = self.launch("-n", 2, script, "-n", 3, "--np=4", "--hosts", "here").done()
        self.assertEqual(lines_of_ranks(job), {rank: [f"{rank} -n 3 --np=4 --hosts here"] for rank in (0, 1)})
        job = self.launch("-n2", "--no-prefix", "echo", "--no-prefix").done()
        self.assertEqual(job.out, "--no-prefix\n--no-prefix\n")

    def test_the_options_of_the_deepspeed_launcher(self):
        hosts = self.folder / "hosts"
        hosts.write_text("localhost slots=3\nelsewhere slots=1\n")
        job = self.launch("--hostfile", hosts, "--num_nodes", 1, "--num_gpus", 2, script="echo $WORLD_SIZE").done()
        self.assertEqual(lines_of_ranks(job), {0: ["2"], 1: ["2"]})
        job = self.launch("--num_gpus", 2, script="echo $LOCAL_RANK").done()
        self.assertEqual(lines_of_ranks(job), {0: ["0"], 1: ["1"]})

    def test_streams_stay_apart_and_lines_whole(self):
        job = self.launch("-n", 2, script="for i in $(seq 300); do echo out $i; echo err $i >&2; done; printf end").done()
        expected = [f"out {i}" for i in range(1, 301)] + ["end"]
        self.assertEqual(lines_of_ranks(job), {0: expected, 1: expected})
        self.assertEqual(len(re.findall(r"^\[[01]\] err \d+$", job.err, re.MULTILINE)), 600)

    def test_the_exit_status_is_that_of_the_first_failure(self):
        job = self.launch("-n", 3, script="[ $RANK = 1 ] && exit 7; sleep 600")
        self.assert_one_message(job, 7, "rank 1", "localhost", "exit status 7", "the other ranks were stopped")

    def test_a_rank_that_ignores_the_others_end_is_killed(self):
        script = "trap '' TERM INT; [ $RANK = 0 ] && exit 3; echo ready; while :; do sleep 1; done"
        self.assert_one_message(self.launch("-n", 2, "--grace", 1, script=script), 3, "rank 0")

    def test_a_killed_rank_is_named(self):
        job = self.launch("-n", 2, script=WAIT)
        self.wait_for_ready(job, 2)
        pid = self.ranks()[1]
        os.kill(pid, signal.SIGKILL)
        self.assert_one_message(job, 128 + 9, "rank 1", f"pid {pid}", "signal 9")

    def test_a_killed_rank_of_bimetal_is_named_and_not_who_missed_it(self):
        job = self.launch("-n", 2, "--", BIMETAL, "train", self.write_job(), "--worker", "cpu:threads=1", "--worker",
                          "cpu:threads=1")
        self.wait_for_checkpoint(job)
        os.kill(self.ranks()[1], signal.SIGKILL)
        job.wait()
        self.assertEqual(job.status, 128 + 9, job.err)
        self.assertIn("rank 1 on localhost", job.err)

    def test_the_summary_says_where_the_report_is(self):
        job_file = self.write_job(train__steps=5)
        job = self.launch("-n", 2, "--", BIMETAL, "train", job_file, "--report", "run.json", "--worker", "cpu:threads=1", "--worker",
                          "cpu:threads=1").done()
        kept = self.checkpoints / "step-00000005"
        self.assertRegex(job.err.splitlines()[-1], rf"^bimetal: 2 ranks ended after \d+:\d\d; report {self.folder}/run.json, checkpoint {kept}$")
        self.assertEqual(self.launch("-n", 2, "--", "true").done().err, "")
        loop = self.folder / "loop.py"
        loop.write_text("import bimetal\nsampler = bimetal.BalancedBatchSampler(10, 4)\n"
                        "bimetal.page(sampler, loss=lambda: 1.0, run='runs/first')\nfor _ in sampler: sampler.finish_step()\n")
        job = self.launch("-n", 1, loop).done()
        self.assertRegex(job.err.splitlines()[-1], rf"^bimetal: 1 rank ended after \d+:\d\d; run {self.folder}/runs/first$")

    def test_the_page_of_a_launched_job(self):
        job = self.launch("-n", 2, "--", BIMETAL, "train", self.write_job(checkpoint__every_steps=0), "--page", "--worker", "cpu:threads=1",
                          "--worker", "cpu:threads=1")
        browser = Browser(job)
        browser.told("status", lambda status: status["step"] > 0)
        browser.press(ask="stop")
        job.done(harness.INTERRUPTED)
        self.assertNotIn("error:", job.err)
        self.assertRegex(job.err, rf"bimetal: 2 ranks ended after \d+:\d\d; checkpoint {self.checkpoints}/step-")

    def test_ctrl_c_reaches_all(self):
        job = self.launch("-n", 2, script="trap 'echo interrupted; exit 0' INT; " + WAIT_FOR_SIGNALS)
        self.wait_for_ready(job, 2)
        job.end()
        self.assertEqual(job.out.count("interrupted"), 2, job.out)

    def test_sigterm_is_handed_on_as_such(self):
        job = self.launch("-n", 1, script="trap 'echo terminated; exit 0' TERM; " + WAIT_FOR_SIGNALS)
        self.wait_for_ready(job, 1)
        job.process.send_signal(signal.SIGTERM)
        job.done(harness.INTERRUPTED)
        self.assertIn("terminated", job.out)

    def test_a_second_ctrl_c_kills(self):
        job = self.launch("-n", 2, script="trap '' INT TERM; echo ready; while :; do sleep 1; done")
        self.wait_for_ready(job, 2)
        job.interrupt()
        job.wait_for_output("Ctrl-C again")
        job.end()

    def test_nothing_outlives_a_killed_launcher(self):
        job = self.launch("-n", 2, script=WAIT)
        self.wait_for_ready(job, 2)
        self.assertGreaterEqual(len(self.processes()), 5)  # ranks, their children, the agent
        os.kill(job.pid, signal.SIGKILL)
        job.wait()

    def test_no_rank_outlives_a_killed_agent(self):
        job = self.launch("-n", 2, script="echo ready; exec sleep 600")
        self.wait_for_ready(job, 2)
        agent = harness.parent_of(self.ranks()[0])
        os.kill(agent, signal.SIGKILL)
        self.assert_one_message(job, harness.PEER_LOST, "localhost", "signal 9", "ranks 0-1")

    def test_a_reader_that_stops_reading_does_not_keep_ctrl_c_from_working(self):
        with subprocess.Popen([BIMETAL, "launch", "-n", "1", "--", "yes"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=self.environment, start_new_session=True) as process:
            try:
                self.assertEqual(process.stdout.readline(), b"[0] y\n")
                for _ in range(2):  # the pipe is full, and nobody empties it
                    os.kill(process.pid, signal.SIGINT)
                    process.stderr.readline()
                self.assertEqual(process.wait(60), harness.INTERRUPTED)
            finally:
                process.kill()

    def test_variables_of_threads_of_python_and_of_horovod(self):
        horovods = "$HOROVOD_RANK $HOROVOD_SIZE $HOROVOD_LOCAL_RANK $HOROVOD_CROSS_SIZE"
        job = self.launch("-n", 2, script=f"echo $OMP_NUM_THREADS $PYTHONUNBUFFERED {horovods}", environment={"OMP_NUM_THREADS": "5"})
        job.done()
        self.assertEqual(lines_of_ranks(job), {0: ["5 1 0 2 0 1"], 1: ["5 1 1 2 1 1"]})


class Refusals(LaunchTest):
    def test_what_cannot_be_launched(self):
        true = ("--", "true")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for arguments, status, *parts in (
                    (true, harness.INVALID_ARGUMENT, "-n N", "-H"), (("-n", 2), harness.INVALID_ARGUMENT, "--"),
                    (("-n", 3, "-H", "localhost:2", *true), harness.INVALID_ARGUMENT, "3 ranks", "2 slots"),
                    (("-H", "localhost:1,localhost:2", *true), harness.INVALID_ARGUMENT, "localhost is listed twice"),
                    (("-n", 2, "--", "no-such-program"), harness.INVALID_ARGUMENT, "no-such-program", socket.gethostname(), "PATH"),
                    (("-n", 1, "--chdir", "/no/such/folder", *true), harness.SYSTEM, "/no/such/folder"),
                    (("-n", 2, "--master-port", port, *true), harness.SYSTEM, str(port), "in use", "--master-port"),
                    (("-n", 2, "--master-addr", "192.0.2.1", *true), harness.SYSTEM, "192.0.2.1", "--master-addr"),
                    (("--slurm", *true), harness.INVALID_ARGUMENT, "srun"), (("--mpi", *true), harness.INVALID_ARGUMENT, "mpirun"),
                    (("-n", 1, "--env", "BIMETAL_TOKEN=secret", *true), harness.INVALID_ARGUMENT, "BIMETAL_TOKEN_FILE")):
                with self.subTest(arguments):
                    self.assert_refused(self.launch(*arguments), status, *parts)


if __name__ == "__main__":
    harness.main()
