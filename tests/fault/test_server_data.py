"""Parameter servers: servers and workers on machines without data are sent it, at any time of the job."""

import os
import shutil
import signal

import harness
from harness import DataElsewhere, wait_until

ONE = "cpu:threads=1"


class ServedData(DataElsewhere):
    def job(self, **settings):
        return self.write_job(parallel__mode="server", data__path="data", checkpoint__dir="",
                              **{"checkpoint__every_steps": 0, "train__steps": 20, **settings})

    def test_a_server_and_workers_without_data_are_sent_it_once(self):
        job_file = self.job(servers__count=2)
        for sent in (1, 0):
            host = self.lead(job_file, "--servers-here", 1, "--encrypt")
            guest = self.join_elsewhere(host, "--server", "--encrypt", workers=(ONE, ONE))
            self.assert_trained(host, guest)
            self.assertEqual(host.out.count("sends 0.9 MiB to be kept there"), sent, host.out)
            self.assertEqual(guest.out.count("sends 0.9 MiB to be kept there"), sent, guest.out)
            self.assert_kept_whole()

    def test_a_worker_that_comes_late_is_sent_the_data(self):
        job_file = self.job(train__steps=1_000_000)
        host = self.lead(job_file, workers=(ONE,))
        host.wait_for_output("epoch 1")
        guest = self.join_elsewhere(host)
        host.wait_for_output("has joined")
        self.assertRegex(host.out, r"note: no data on .*in none of these folders: data.*: server 0 on .* sends 0.9 MiB")
        self.assert_kept_whole()
        host.end()
        guest.wait()

    def test_whoever_stands_in_for_server_0_sends_the_data_too(self):
        host = self.lead(self.job(train__steps=1_000_000, servers__replicas=2), workers=(ONE,))
        host.wait_for_output("epoch 1")
        self.kill(host, 1)
        host.wait_for_output("server 0 is lost; server 1 leads")
        guest = self.join_elsewhere(host)
        guest.wait_for_output("sends 0.9 MiB to be kept there")
        wait_until(lambda: any(not path.name.startswith(".") for path in self.in_cache()), "the data", guest)
        self.assert_kept_whole()
        host.wait_for_output("worker 1 (")  # it would look for a job that has ended for as long as it may take to join one
        host.end()
        guest.wait()

    def test_sending_can_be_forbidden_or_limited(self):
        for settings, words in (({"data__send": False}, "[data] send = false"),
                                ({"data__send_max_gb": 0.0005}, "send_max_gb = 0.0005")):
            host = self.lead(self.job(**settings))
            self.assert_one_message(self.join_elsewhere(host), harness.INVALID_ARGUMENT, "no copy of the data set", words)
            host.interrupt()
            host.wait()
        self.assertEqual(self.in_cache(), [])

    def test_server_0_needs_the_data(self):
        shutil.move(self.folder / "data", self.folder / "away")
        host = self.lead(self.job(cluster__join_timeout_s=5))
        guest = self.join_elsewhere(host, "--join-timeout", 5)  # perhaps the job has ended before
        self.assert_one_message(host, harness.INVALID_ARGUMENT, "in none of these folders: data",
                                "parameter server 0 needs a copy")
        self.assertNotEqual(guest.wait().status, 0)

    # ---- faults while the data is sent -------------------------------------------------------------

    def begin_to_send(self, **settings):
        self.enlarge()
        host = self.lead(self.job(**settings))
        guest, receiver = self.stop_while_sending(host)
        self.assertTrue(all(path.name.startswith(".") for path in self.in_cache()), "it is not sent yet")
        return host, guest, receiver

    def test_the_receiver_is_killed_and_another_one_works(self):
        host, guest, receiver = self.begin_to_send()
        another = self.join_elsewhere(host)  # waits for the first one
        another.wait_for_output("joining")
        os.kill(receiver, signal.SIGKILL)
        self.assert_one_message(guest, harness.PEER_LOST, f"pid {receiver}) was killed by signal 9")
        self.assert_trained(host, another)
        self.assert_kept_whole()  # and nothing of the first one's lies beside it

    def test_the_sender_is_killed(self):
        host, guest, receiver = self.begin_to_send()
        os.kill(host.pid, signal.SIGSTOP)  # else, on a busy machine, the guest hears of the job's end first
        self.kill(host, 0)
        os.kill(receiver, signal.SIGCONT)
        wait_until(lambda: receiver not in self.processes(), "the receiver's end", guest)
        os.kill(host.pid, signal.SIGCONT)
        self.assert_one_message(guest, harness.PEER_LOST, "the sending of one has failed: server 0")
        self.assertNotEqual(host.wait().status, 0)
        self.assertEqual(self.in_cache(), [], "the receiver cleans up")

    @harness.waits
    def test_a_sender_that_hangs_is_named(self):
        host, guest, receiver = self.begin_to_send(parallel__timeout_s=2)
        server, = self.ranks_of(host)
        os.kill(server, signal.SIGSTOP)
        os.kill(receiver, signal.SIGCONT)
        self.assert_one_message(guest, harness.TIMEOUT, "the sending of one has failed: server 0")
        self.assertEqual(self.in_cache(), [])
        os.kill(server, signal.SIGCONT)
        host.interrupt()
        host.wait()


if __name__ == "__main__":
    harness.main()
