"""A parameter server is killed while the job starts: with a copy of what it keeps the job goes on, without it ends at once.

cluster.join_timeout_s is longer than the test's patience: a process that waits for the dead server in vain fails the
test.
"""

import os
import re
import shutil
import signal
import time

import harness
from harness import TwoMachines, connected, listening_ports, wait_until

ONE = "cpu:threads=1"
EPOCHS = 3
SAMPLES = 1024


class ServerStart(TwoMachines):
    def server_job(self, **settings):
        return self.write_job(parallel__mode="server", servers__count=2, train__epochs=EPOCHS, train__dtype="float64",
                              cluster__join_timeout_s=600, parallel__timeout_s=600, **settings)

    def connected_workers(self, jobs, ports):
        return [pid for pid in self.workers_of(jobs) if any(connected(pid, port) for port in ports)]

    def begin(self, job_file, *arguments, workers=(ONE, ONE), servers):
        """A job as soon as all of its processes are there, workers first; they may be anywhere in their start."""
        job = self.train(job_file, "--report", self.folder / "run.json", *arguments, workers=workers)
        count = len([worker for worker in workers if worker != "none"]) + servers
        found = {}

        def all_there():
            found.update(harness.ranks_below(job.pid, self.processes()))
            return len(found) == count or job.process.poll() is not None

        wait_until(all_there, f"{count} processes", job)
        return job, [found[rank] for rank in sorted(found)]

    # ---- three moments ---------------------------------------------------------------------------

    def before_it_listens(self, job, workers, server):
        os.kill(server, signal.SIGKILL)

    def before_a_worker_has_dialled(self, job, workers, server):
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: listening_ports(server), "the server to listen", job)
        time.sleep(0.2)  # it may have told the others by now
        os.kill(server, signal.SIGKILL)
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    def before_a_worker_is_welcome(self, job, workers, server):
        wait_until(lambda: listening_ports(server), "the server to listen", job)
        os.kill(server, signal.SIGSTOP)
        port = listening_ports(server)[0]
        # Others may wait for each other, or for this one, before a worker comes here.
        end = time.monotonic() + 3
        while time.monotonic() < end and not any(connected(pid, port) for pid in workers):
            time.sleep(0.02)
        os.kill(server, signal.SIGKILL)

    MOMENTS = (before_it_listens, before_a_worker_has_dialled, before_a_worker_is_welcome)

    # ---- what must come of it --------------------------------------------------------------------

    def expected_loss(self):
        job_file = self.write_job(checkpoint__dir="", train__epochs=EPOCHS, train__dtype="float64")
        return self.reported(job_file)["train_loss"]

    def test_with_copies_the_job_starts_without_it(self):
        loss = self.expected_loss()
        for moment in self.MOMENTS:
            for killed in (0, 3):  # 0 and 2 keep the first part, 1 and 3 the second
                with self.subTest(moment=moment.__name__, server=killed):
                    job, pids = self.begin(self.server_job(servers__replicas=2), servers=4)
                    moment(self, job, pids[:2], pids[2 + killed])
                    report = self.report_of(job)
                    self.assertRegex(job.out, f"server {killed} is lost")
                    self.assertEqual("leads the job" in job.out, killed == 0, job.out)
                    self.assertEqual(sum(worker["samples"] for worker in report["workers"]), EPOCHS * SAMPLES)
                    self.assertAlmostEqual(report["train_loss"], loss, delta=1e-10)
                    self.assertEqual(self.saved_steps()[-1], EPOCHS * SAMPLES // 64)
                    self.assert_nothing_left()
                    shutil.rmtree(self.checkpoints)

    def test_without_a_copy_it_ends_at_once(self):
        for moment in self.MOMENTS:
            for killed in range(2):
                with self.subTest(moment=moment.__name__, server=killed):
                    job, pids = self.begin(self.server_job(), servers=2)
                    moment(self, job, pids[:2], pids[2 + killed])
                    self.assert_one_message(job, harness.PEER_LOST, f"parameter server {killed}", f"pid {pids[2 + killed]}",
                                            "signal 9")
                    self.assert_nothing_left()

    def test_both_copies_of_a_part_end_it_at_once(self):
        for first, second in ((0, 2), (3, 1)):
            with self.subTest(killed=(first, second)):
                job, pids = self.begin(self.server_job(servers__replicas=2), servers=4)
                for killed in (first, second):
                    os.kill(pids[2 + killed], signal.SIGKILL)
                job.done(harness.PEER_LOST)
                self.assertRegex(job.err, f"parameter server ({first}|{second})")
                self.assert_nothing_left()

    def test_workers_that_join_while_server_0_dies_are_numbered_by_its_copy(self):
        """Server 0 hears of the workers or not, before it dies; its copy has to wait for server 1 before it leads."""
        for deaf in (False, True):
            with self.subTest(deaf=deaf):
                job, servers = self.begin(self.server_job(servers__replicas=2), "--listen", "127.0.0.1:0", "--token-file",
                                          self.token, workers=("none",), servers=4)
                job.wait_for_output("workers may come and go")
                job.address = re.search(r"bimetal join (\S+)", job.out)[1]
                wait_until(lambda: all(listening_ports(pid) for pid in servers), "all servers to listen", job)
                # Server 0 sends its data to who lacks them, at a port of its own.
                wait_until(lambda: len(listening_ports(servers[0])) == 2, "both ports of server 0", job)
                if deaf:
                    os.kill(servers[0], signal.SIGSTOP)
                os.kill(servers[1], signal.SIGSTOP)
                joined = [self.join(job) for _ in range(2)]
                ports = listening_ports(servers[0])
                wait_until(lambda jobs=joined, at=ports: len(self.connected_workers(jobs, at)) == 2, "workers at server 0", job)
                os.kill(servers[0], signal.SIGKILL)
                time.sleep(0.5)
                os.kill(servers[1], signal.SIGCONT)
                report = self.report_of(job)
                self.assertIn("server 2 leads the job", job.out)
                self.assertEqual([worker.wait().status for worker in joined], [0, 0], joined[0].err + joined[1].err)
                self.assertEqual(sum(worker["samples"] for worker in report["workers"]), EPOCHS * SAMPLES)
                self.assertEqual(len(report["workers"]), 2)
                self.assert_nothing_left()

    def workers_of(self, jobs):
        return [pid for job in jobs for pid in harness.ranks_below(job.pid, self.processes()).values()]


if __name__ == "__main__":
    harness.main()
