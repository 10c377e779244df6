"""A server is stopped beyond parallel.timeout_s, as a laptop that sleeps is, and its copy leads the job meanwhile: what it
believes when it wakes up does no harm, and it does not outlive the job."""

import fcntl
import json
import os
import shutil
import signal

import harness
from harness import TwoMachines, wait_until

LAST_STEP = 640
ONE = "cpu:threads=1"


@harness.waits
class Superseded(TwoMachines):
    def served_job(self, **settings):
        return self.write_job(**{"parallel__mode": "server", "servers__replicas": 2, "parallel__timeout_s": 3,
                                 "train__epochs": 40, **settings})

    def train_with_a_stopped_server(self, **settings):
        """Server 0 stops with the first step; its copy trains to the end, and has ended."""
        job = self.train(self.served_job(**settings))
        job.wait_for_output("step ")
        *_, server, copy = self.ranks_of(job)
        self.stop_between_saves(server)
        job.wait_for_output("server 1 leads the job")
        wait_until(lambda: copy not in self.processes(), "the end of the copy", job)
        return job, server

    def saves(self):
        """Sequence, step and term of each checkpoint, in the order in which they were saved."""
        found = []
        for path in self.checkpoints.glob("step-*"):
            manifest = json.loads((path / "state.json").read_text())
            found.append((manifest["sequence"], manifest["state"]["step"], manifest["state"]["term"]))
        return sorted(found)

    def test_a_server_that_wakes_up_when_the_job_is_done_saves_nothing(self):
        for signals in ((signal.SIGINT, signal.SIGCONT), (signal.SIGCONT, signal.SIGINT)):
            with self.subTest(signals):
                job, server = self.train_with_a_stopped_server()
                saves = self.saves()
                self.assertEqual(saves[-1][1], LAST_STEP)
                for number in signals:
                    os.kill(server, number)
                wait_until(lambda: server not in self.processes(), "the end of the server", job)
                job.done()
                self.assertRegex(job.out, r"\ncheckpoint \S+\n\Z", "the last word")
                self.assertEqual(self.saves(), saves)
                self.assert_nothing_left()
                self.assert_no_half_checkpoint()
                shutil.rmtree(self.checkpoints)

    def test_a_server_that_slept_while_it_saved_does_not_put_that_into_place(self):
        """If hosts have folders of their own, nobody's later checkpoint is there to tell it."""
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        kept = self.folder / "kept"
        host = self.train(self.served_job(checkpoint__dir="kept"), "--listen", "127.0.0.1:0", "--token-file", self.token,
                          "--servers-here", 1, workers=("none",))
        host.wait_for_output("workers may come and go")
        host.address = host.out.split("bimetal join ")[1].split()[0]
        guest = self.join(host, "--server", workers=(ONE,), folder=elsewhere)
        wait_until(lambda: any(kept.glob("step-*")), "a checkpoint", host)
        turn = os.open(kept, os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX)
        wait_until(lambda: any(kept.glob(".*/optimizer.safetensors")), "a save that waits for its turn", host)
        server = self.ranks_of(host)[-1]
        os.kill(server, signal.SIGSTOP)
        saved = sorted(kept.glob("step-*"))
        guest.wait_for_output("server 1 leads the job")
        os.close(turn)
        os.kill(server, signal.SIGCONT)
        wait_until(lambda: server not in self.processes(), "its end", host)
        self.assertEqual(sorted(kept.glob("step-*")), saved)
        self.assertEqual(guest.wait().status, 0, f"{guest.out}\n{guest.err}")
        host.wait()
        self.assert_nothing_left()

    def test_who_leads_later_has_the_higher_term(self):
        self.train_with_a_stopped_server(train__steps=LAST_STEP)[0].wait()
        self.assertEqual(self.saves()[-1][1:], (LAST_STEP, 2))
        self.train(self.served_job(train__steps=LAST_STEP + 10, train__epochs=50), "--resume", self.checkpoints).done()
        self.assertEqual(self.saves()[-1][1:], (LAST_STEP + 10, 3))

    def test_also_on_another_machine_than_its_copy(self):
        for workers in ((ONE,), ("none",)):
            with self.subTest(workers=workers):
                host = self.lead(self.served_job(), "--servers-here", 1, workers=workers)
                guest = self.join(host, "--server", workers=(ONE,))
                self.wait_for_checkpoint(host)
                self.stop_between_saves(self.ranks_of(host)[-1])
                guest.done()
                host.done()
                self.assertIn("parameter server 0 did not end with the job", host.err)
                self.assertEqual(self.saves()[-1][1], LAST_STEP)
                self.assert_nothing_left()
                shutil.rmtree(self.checkpoints)


if __name__ == "__main__":
    harness.main()
