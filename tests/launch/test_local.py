"""`bimetal launch` on this machine alone."""

import json
import os
import re
import signal
import socket
import subprocess

from launches import BIMETAL, SHOW, WAIT, WAIT_FOR_SIGNALS, LaunchTest, harness, lines_of_ranks


class Local(LaunchTest):
    def test_every_rank_knows_its_place(self):
        job = self.launch("-n", 3, script=SHOW)
        self.assert_done(job)
        lines = lines_of_ranks(job)
        self.assertEqual(sorted(lines), [0, 1, 2])
        for rank in range(3):
            self.assertRegex(lines[rank][0], rf"^rank {rank}/3 local {rank}/3 node 0 at 127\.0\.0\.1:\d+$")
        self.assertEqual(len({line[0].rsplit(":")[1] for line in lines.values()}), 1)
        self.assert_nothing_left()

    def test_a_file_in_python_and_options_of_its_own(self):
        script = self.folder / "train.py"
        script.write_text("import os, sys, bimetal\nprint(os.environ['RANK'], *sys.argv[1:])\n")
        job = self.launch("-n", 2, script, "-n", 3, "--np=4", "--hosts", "here")
        self.assert_done(job)
        self.assertEqual(lines_of_ranks(job), {rank: [f"{rank} -n 3 --np=4 --hosts here"] for rank in (0, 1)})
        job = self.launch("-n2", "--no-prefix", "echo", "--no-prefix")
        self.assert_done(job)
        self.assertEqual(job.out, "--no-prefix\n--no-prefix\n")
        self.assert_nothing_left()

    def test_the_options_of_the_deepspeed_launcher(self):
        hosts = self.folder / "hosts"
        hosts.write_text("localhost slots=3\nelsewhere slots=1\n")
        job = self.launch("--hostfile", hosts, "--num_nodes", 1, "--num_gpus", 2, script="echo $WORLD_SIZE")
        self.assert_done(job)
        self.assertEqual(lines_of_ranks(job), {0: ["2"], 1: ["2"]})
        job = self.launch("--num_gpus", 2, script="echo $LOCAL_RANK")
        self.assert_done(job)
        self.assertEqual(lines_of_ranks(job), {0: ["0"], 1: ["1"]})
        self.assert_nothing_left()

    def test_bimetal_train_as_ranks(self):
        report = self.folder / "report.json"
        job = self.launch("-n", 2, "--", BIMETAL, "train", self.write_job(train__steps=30), "--worker",
                          "cpu:threads=1", "--worker", "cpu:threads=1", "--report", report)
        self.assert_done(job)
        figures = json.loads(report.read_text())
        self.assertEqual(figures["world_size"], 2)
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), 30 * 64)
        self.assert_nothing_left()

    def test_streams_stay_apart_and_lines_whole(self):
        job = self.launch("-n", 2, script="for i in $(seq 300); do echo out $i; echo err $i >&2; done; printf end")
        self.assert_done(job)
        expected = [f"out {i}" for i in range(1, 301)] + ["end"]
        self.assertEqual(lines_of_ranks(job), {0: expected, 1: expected})
        self.assertEqual(len(re.findall(r"^\[[01]\] err \d+$", job.err, re.MULTILINE)), 600)

    def test_without_prefix(self):
        job = self.launch("-n", 2, "--no-prefix", script="echo $RANK")
        self.assert_done(job)
        self.assertEqual(sorted(job.out.split()), ["0", "1"])

    def test_the_exit_status_is_that_of_the_first_failure(self):
        job = self.launch("-n", 3, script="[ $RANK = 1 ] && exit 7; sleep 600")
        job.wait()
        self.assert_one_message(job, 7, "rank 1", "localhost", "exit status 7", "the other ranks were stopped")
        self.assert_nothing_left()

    def test_a_rank_that_ignores_the_others_end_is_killed(self):
        script = "trap '' TERM INT; [ $RANK = 0 ] && exit 3; echo ready; while :; do sleep 1; done"
        job = self.launch("-n", 2, "--grace", 1, script=script).wait()
        self.assert_one_message(job, 3, "rank 0")
        self.assert_nothing_left()

    def test_a_killed_rank_is_named(self):
        job = self.launch("-n", 2, script=WAIT)
        self.wait_for_ready(job, 2)
        pid = self.ranks()[1]
        os.kill(pid, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, 128 + 9, "rank 1", f"pid {pid}", "signal 9")
        self.assert_nothing_left()

    def test_a_killed_rank_of_bimetal_is_named_and_not_who_missed_it(self):
        job = self.launch("-n", 2, "--", BIMETAL, "train", self.write_job(), "--worker", "cpu:threads=1", "--worker",
                          "cpu:threads=1")
        self.wait_for_checkpoint(job)
        os.kill(self.ranks()[1], signal.SIGKILL)
        job.wait()
        self.assertEqual(job.status, 128 + 9, job.err)
        self.assertIn("rank 1 on localhost", job.err)
        self.assert_nothing_left()

    def test_ctrl_c_reaches_all(self):
        job = self.launch("-n", 2, script="trap 'echo interrupted; exit 0' INT; " + WAIT_FOR_SIGNALS)
        self.wait_for_ready(job, 2)
        job.interrupt()
        self.assert_done(job, harness.INTERRUPTED)
        self.assertEqual(job.out.count("interrupted"), 2, job.out)
        self.assert_nothing_left()

    def test_sigterm_is_handed_on_as_such(self):
        job = self.launch("-n", 1, script="trap 'echo terminated; exit 0' TERM; " + WAIT_FOR_SIGNALS)
        self.wait_for_ready(job, 1)
        job.process.send_signal(signal.SIGTERM)
        self.assert_done(job, harness.INTERRUPTED)
        self.assertIn("terminated", job.out)

    def test_ctrl_c_saves_a_checkpoint(self):
        job = self.launch("-n", 2, "--", BIMETAL, "train", self.write_job(checkpoint__every_steps=0), "--worker",
                          "cpu:threads=1", "--worker", "cpu:threads=1")
        job.wait_for_output("step ")
        job.interrupt()
        self.assert_done(job, harness.INTERRUPTED)
        self.assert_saved_where_it_stopped(job)
        self.assert_nothing_left()

    def test_a_second_ctrl_c_kills(self):
        job = self.launch("-n", 2, script="trap '' INT TERM; echo ready; while :; do sleep 1; done")
        self.wait_for_ready(job, 2)
        job.interrupt()
        job.wait_for_output("Ctrl-C again")
        job.interrupt()
        self.assert_done(job, harness.INTERRUPTED)
        self.assert_nothing_left()

    def test_nothing_outlives_a_killed_launcher(self):
        job = self.launch("-n", 2, script=WAIT)
        self.wait_for_ready(job, 2)
        self.assertGreaterEqual(len(self.processes()), 5)  # ranks, their children, the agent
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        self.wait_until_nothing_is_left()

    def test_no_rank_outlives_a_killed_agent(self):
        job = self.launch("-n", 2, script="echo ready; exec sleep 600")
        self.wait_for_ready(job, 2)
        agent = harness.parent_of(self.ranks()[0])
        os.kill(agent, signal.SIGKILL)
        job.wait()
        self.assert_one_message(job, harness.PEER_LOST, "localhost", "signal 9", "ranks 0-1")
        self.wait_until_nothing_is_left()

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
        self.wait_until_nothing_is_left()

    def test_threads_are_shared_out_and_python_does_not_keep_its_lines(self):
        job = self.launch("-n", 2, script="echo $OMP_NUM_THREADS $PYTHONUNBUFFERED",
                          environment={"OMP_NUM_THREADS": "5"})
        self.assert_done(job)
        self.assertEqual(lines_of_ranks(job), {0: ["5 1"], 1: ["5 1"]})

    def test_horovods_variables(self):
        job = self.launch("-n", 2, script="echo $HOROVOD_RANK $HOROVOD_SIZE $HOROVOD_LOCAL_RANK $HOROVOD_CROSS_SIZE")
        self.assert_done(job)
        self.assertEqual(lines_of_ranks(job), {0: ["0 2 0 1"], 1: ["1 2 1 1"]})


class Refusals(LaunchTest):
    def test_no_number(self):
        self.assert_refused(self.launch(script="true"), harness.INVALID_ARGUMENT, "-n N", "-H")

    def test_no_command(self):
        self.assert_refused(self.launch("-n", 2), harness.INVALID_ARGUMENT, "--")

    def test_more_ranks_than_slots(self):
        self.assert_refused(self.launch("-n", 3, "-H", "localhost:2", script="true"), harness.INVALID_ARGUMENT,
                            "3 ranks", "2 slots")

    def test_a_host_listed_twice(self):
        self.assert_refused(self.launch("-H", "localhost:1,localhost:2", script="true"), harness.INVALID_ARGUMENT,
                            "localhost is listed twice")

    def test_a_program_that_does_not_exist(self):
        self.assert_refused(self.launch("-n", 2, "--", "no-such-program"), harness.INVALID_ARGUMENT, "no-such-program",
                            socket.gethostname(), "PATH")

    def test_a_folder_that_does_not_exist(self):
        self.assert_refused(self.launch("-n", 1, "--chdir", "/no/such/folder", script="true"), harness.SYSTEM,
                            "/no/such/folder")

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assert_refused(self.launch("-n", 2, "--master-port", port, script="true"), harness.SYSTEM, str(port),
                                "in use", "--master-port")

    def test_an_address_of_another_machine(self):
        self.assert_refused(self.launch("-n", 2, "--master-addr", "192.0.2.1", script="true"), harness.SYSTEM,
                            "192.0.2.1", "--master-addr")

    def test_an_engine_that_is_not_there(self):
        self.assert_refused(self.launch("--slurm", script="true"), harness.INVALID_ARGUMENT, "srun")
        self.assert_refused(self.launch("--mpi", script="true"), harness.INVALID_ARGUMENT, "mpirun")

    def test_a_token_on_the_command_line(self):
        self.assert_refused(self.launch("-n", 1, "--env", "BIMETAL_TOKEN=secret", script="true"),
                            harness.INVALID_ARGUMENT, "BIMETAL_TOKEN_FILE")


if __name__ == "__main__":
    harness.main()
