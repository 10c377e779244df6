"""Jobs on several machines, with loopback in place of the network: joining, and failing to."""

import json
import socket

import harness
from harness import TwoMachines, free_port, own_address, waits


class Joining(TwoMachines):
    def test_two_machines_train_one_model(self):
        report = self.folder / "report.json"
        host = self.host(self.write_job(train__steps=50), "--report", report, world_size=3)
        first = self.join(host)
        host.wait_for_output("waiting for 1 more worker")
        second = self.join(host)
        for job in (host, first, second):
            job.done()
        figures = json.loads(report.read_text())
        self.assertEqual(figures["world_size"], 3)
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), 50 * 64)
        self.assertEqual(self.saved_steps()[-1], 50)

    def test_encrypted_where_both_ask_for_it(self):
        host = self.host(self.write_job(train__steps=5), "--encrypt")
        guest = self.join(host, "--encrypt")
        for job in (host, guest):
            job.done()

    def test_a_plain_job_beyond_loopback_says_so_once(self):
        """Once for all ranks and machines, however they are told where to listen."""
        own = own_address()
        notice = "not encrypted"
        for arguments, said in ((("--listen", f"{own}:0"), 1), (("--listen", f"{own}:0", "--encrypt"), 0), ((), 0)):
            with self.subTest(arguments):
                host = self.host(self.write_job(train__steps=5), *arguments)
                guest = self.join(host, *arguments[2:])
                for job in (host, guest):
                    job.done()
                self.assertEqual([job.err.count(notice) for job in (host, guest)], [said, 0], host.err + guest.err)
                self.assertEqual(host.err.count("BIMETAL_ENCRYPTION=on"), said)

    @waits
    def test_a_machine_that_leaves_encryption_out_is_told_so(self):
        host = self.host(self.write_job(), "--encrypt", "--join-timeout", "3")
        self.assert_one_message(self.join(host, "--join-timeout", "2"), harness.INVALID_ARGUMENT, "encrypt")
        self.assert_one_message(host, harness.TIMEOUT, "1 of 2 workers")

    def test_ctrl_c_on_one_machine_ends_both_orderly(self):
        job_file = self.write_job(checkpoint__every_steps=0)
        host = self.host(job_file, "--no-elastic")
        guest = self.join(host)
        host.wait_for_output("step ")
        guest.interrupt()
        for job in (host, guest):
            job.done(harness.INTERRUPTED)
            self.assertNotIn("error", job.err)
            self.assertRegex(job.out, r"(?m)^step \d+/\d+  [\d:?]+ left  loss \S+  efficiency \d+ %", "both show the job")
        self.assertRegex(host.out, r"rank 1 on \S+ was told to stop \(Ctrl-C there\)")
        self.assertNotIn("was told to stop", guest.out)
        self.assert_saved_where_it_stopped(host)

    @waits
    def test_a_worker_that_never_joins(self):
        host = self.host(self.write_job(), "--join-timeout", "2", world_size=3)
        self.assert_one_message(host, harness.TIMEOUT, "1 of 3 workers", "2 s", "bimetal join", host.address)

    @waits
    def test_a_rank_that_never_comes(self):
        """Ranks started by hand, one of them forgotten."""
        port = free_port()
        job = self.train(self.write_job(), "--join-timeout", "3", workers=("cpu:threads=1",) * 2,
                         environment={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).wait()
        self.assert_one_message(job, harness.TIMEOUT, "did not join in time: 1", "joined: 0")

    def test_a_wrong_token(self):
        host = self.host(self.write_job(train__steps=20))
        wrong = self.folder / "wrong"
        self.start("token", wrong).done()
        self.assertEqual(wrong.stat().st_mode & 0o777, 0o600)
        self.assert_one_message(self.join(host, token=wrong), harness.UNAUTHORIZED, "token", host.address)
        self.join(host).done()  # the job has not suffered
        host.done()

    @waits
    def test_no_token_beyond_loopback(self):
        self.assert_one_message(self.train(self.write_job(), "--listen", "0.0.0.0:0", "--world-size", 2, workers=("cpu",)),
                                harness.UNAUTHORIZED, "0.0.0.0", "--token-file")

    @waits
    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            job = self.train(self.write_job(), "--listen", f"127.0.0.1:{port}", "--world-size", 2,
                             "--token-file", self.token, workers=("cpu",)).wait()
        self.assert_one_message(job, harness.SYSTEM, str(port), "in use")

    @waits
    def test_a_full_job(self):
        host = self.host(self.write_job(), world_size=3)
        self.assert_one_message(self.join(host, workers=("cpu:threads=1",) * 3), harness.INVALID_ARGUMENT,
                                "1 of the job's 3 workers have joined", "--world-size 4")
        host.end()

    @waits
    def test_the_host_gives_up(self):
        host = self.host(self.write_job(), world_size=3)
        guest = self.join(host)
        guest.wait_for_output("joined")
        host.end()
        guest.wait()
        self.assertIn(guest.status, (harness.ABORTED, harness.PEER_LOST), guest.err)
        self.assertEqual(guest.err.count("error:"), 1, guest.err)

    @waits
    def test_a_guest_gives_up(self):
        host = self.host(self.write_job(), world_size=3)
        guest = self.join(host)
        guest.wait_for_output("joined")
        guest.end()
        self.assert_one_message(host, harness.ABORTED, "left before the job began")

    def test_both_machines_tell_the_same_cause(self):
        host = self.host(self.write_job(), "--no-elastic")
        guest = self.join(host)
        self.wait_for_a_told_checkpoint(host)
        pid = self.kill(guest, 0)
        host.wait()
        self.assert_one_message(guest, harness.PEER_LOST, f"pid {pid}) was killed by signal 9")
        self.assert_one_message(host, harness.PEER_LOST, f"pid {pid}) was killed by signal 9",
                                socket.gethostname(), "Last checkpoint")


if __name__ == "__main__":
    harness.main()
